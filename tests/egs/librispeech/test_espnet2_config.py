"""ESPnet2's options on their way to ESPnet3."""

import pytest
import torch
import yaml
from hydra.utils import instantiate
from src import espnet2_config

from .conftest import RECIPE_DIR

CONF_DIR = RECIPE_DIR.parents[1] / "conf"


@pytest.fixture
def convert(tmp_path):
    """Convert an ESPnet2 training config given as a dict, and command line options."""

    def convert(config: dict, *options: str):
        path = tmp_path / "train.yaml"
        path.write_text(yaml.safe_dump(config))
        args = espnet2_config.parse_asr_config(path, options)
        return espnet2_config.convert_training(args, on_gpu=False)

    return convert


@pytest.mark.parametrize(
    "path", sorted(CONF_DIR.glob("train_*.yaml")), ids=lambda path: path.stem
)
def test_every_config_is_converted(path):
    espnet2 = yaml.safe_load(path.read_text())
    args = espnet2_config.parse_asr_config(path)
    config = espnet2_config.convert_training(args, on_gpu=False)
    for key in ("encoder", "encoder_conf", "decoder", "model_conf", "specaug_conf"):
        assert config["model"].get(key) == espnet2.get(key)
    # ESPnet's default is left out.
    normalize = config["model"].get("normalize", "utterance_mvn")
    assert normalize == espnet2.get("normalize", "global_mvn")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = instantiate(config["optimizer"], [parameter])
    assert optimizer.defaults["lr"] == espnet2["optim_conf"]["lr"]
    scheduler = instantiate(config["scheduler"], optimizer=optimizer)
    assert type(scheduler).__name__.lower() == espnet2["scheduler"]
    trainer = config["trainer"]
    assert trainer["max_epochs"] == espnet2["max_epoch"]
    assert trainer["accumulate_grad_batches"] == espnet2.get("accum_grad", 1)
    # ESPnet2's default.
    assert trainer["gradient_clip_val"] == 5.0
    assert ("precision" in trainer) == espnet2["use_amp"]
    for mode in ("train", "valid"):
        batches = config["dataloader"][mode]["iter_factory"]["batches"]
        assert batches["type"] == espnet2["batch_type"]
        assert batches["batch_bins"] == espnet2["batch_bins"]
    ((phase, criterion, mode),) = espnet2["best_model_criterion"]
    assert config["best_model_criterion"] == [
        [f"{phase}/{criterion}", espnet2["keep_nbest_models"], mode]
    ]


def test_command_line_goes_before_the_config(convert):
    config = convert(
        {"encoder": "aft", "encoder_conf": {"num_blocks": 3}, "max_epoch": 7},
        *("--max_epoch", "9", "--encoder_conf", "aft_type=conv"),
        *("--normalize", "utterance_mvn", "--keep_nbest_models", "2", "5"),
    )
    assert config["trainer"]["max_epochs"] == 9
    assert config["model"]["encoder_conf"] == {"num_blocks": 3, "aft_type": "conv"}
    # ESPnet's own default, then.
    assert "normalize" not in config["model"]
    assert {keep for _, keep, _ in config["best_model_criterion"]} == {5}


def test_scheduler_that_watches_a_criterion(convert):
    config = convert(
        {"scheduler": "reducelronplateau", "val_scheduler_criterion": ["valid", "acc"]}
    )
    assert config["scheduler"]["_target_"].endswith(".ReduceLROnPlateau")
    assert config["scheduler_monitor"] == "valid/acc"
    assert config["scheduler_interval"] == "epoch"


def test_no_scheduler_keeps_the_learning_rate(convert):
    config = convert({"optim": "sgd", "optim_conf": {"lr": 0.5}})
    optimizer = instantiate(config["optimizer"], [torch.nn.Parameter(torch.zeros(1))])
    scheduler = instantiate(config["scheduler"], optimizer=optimizer)
    rates = []
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == [0.5] * 3


def test_preprocessor_options(convert):
    config = convert(
        {
            "rir_scp": "rir.scp",
            "rir_apply_prob": 0.5,
            "preprocessor_conf": {"force_single_channel": True},
        }
    )
    assert config["dataset"]["preprocessor"] == {
        "rir_scp": "rir.scp",
        "rir_apply_prob": 0.5,
        "force_single_channel": True,
    }


def test_option_that_espnet3_has_not_is_named(convert):
    with pytest.raises(ValueError, match="grad_noise, sharded_ddp in .*train.yaml"):
        convert({"sharded_ddp": True}, "--grad_noise", "true")
    # At its default it changes nothing.
    convert({"sharded_ddp": False})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cleaner", "tacotron"),
        ("g2p", "g2p_en"),
        ("non_linguistic_symbols", "symbols.txt"),
        ("speech_volume_normalize", 1.0),
    ],
)
def test_option_that_would_change_training_alone_is_named(convert, option, value):
    with pytest.raises(ValueError, match=f"^{option} in .*train.yaml"):
        convert({option: value})


def test_other_choice_brings_its_own_defaults(convert):
    model = convert({"encoder": "conformer", "specaug": "specaug"})["model"]
    # ESPnet3 would have added those of an RNN.
    assert model["encoder_conf"] == model["specaug_conf"] == {}
    assert "frontend_conf" not in model


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        ({"decoder": "transformer"}, ["valid/acc", "valid/loss"]),
        (
            {"decoder": "transformer", "model_conf": {"ctc_weight": 1.0}},
            ["valid/loss"],
        ),
        ({"decoder": "transducer"}, ["valid/loss"]),
    ],
)
def test_criteria_of_espnet2_that_are_not_logged_are_left_out(
    convert, caplog, model, kept
):
    criteria = convert(model)["best_model_criterion"]
    assert [name for name, _, _ in criteria] == kept
    assert "best_model_criterion: train/loss, train/acc" in caplog.text


def test_tf32(convert):
    assert convert({"use_tf32": True})["use_tf32"] is True
    assert convert({})["use_tf32"] is False


def test_option_that_espnet2_has_not_is_named(convert, capsys):
    with pytest.raises(SystemExit):
        convert({"encoder_config": {}})
    assert "unrecognized arguments: encoder_config" in capsys.readouterr().err


def test_decoding_config(tmp_path):
    path = tmp_path / "decode.yaml"
    path.write_text("beam_size: 5\nctc_weight: 0.4\nbatch_size: 8\n")
    assert espnet2_config.convert_inference(path) == {
        "model": {"beam_size": 5, "ctc_weight": 0.4},
        "batch_size": 8,
    }
    path.write_text("beamsize: 5\n")
    with pytest.raises(ValueError, match="beamsize in .*decode.yaml"):
        espnet2_config.convert_inference(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("pooling_window", value) for value in ("0", "true", "long")),
        *(("chunk_size", value) for value in ("0", "true", "1.5")),
        ("num_left_chunks", "-1"),
    ],
)
def test_value_that_cannot_be_is_named(tmp_path, key, value):
    path = tmp_path / "decode.yaml"
    path.write_text(f"{key}: {value}\n")
    with pytest.raises(ValueError, match=f"{key} in .*decode.yaml must be"):
        espnet2_config.convert_inference(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("pooling_window: 15", "needs batch_size: 1, or best_path: true"),
        ("pooling_window: 15\nbatch_size: 8", "needs batch_size: 1"),
        ("num_left_chunks: 2", "needs chunk_size"),
    ],
)
def test_option_that_needs_another_is_named(tmp_path, options, words):
    path = tmp_path / "decode.yaml"
    path.write_text(options)
    key = options.partition(":")[0]
    with pytest.raises(ValueError, match=f"{key} in .*decode.yaml {words}"):
        espnet2_config.convert_inference(path)


def test_decoding_that_espnet_has_not(tmp_path):
    path = tmp_path / "decode.yaml"
    path.write_text("best_path: true\nbeam_size: 1\n")
    assert espnet2_config.convert_inference(path)["model"] == {
        "_target_": "src.speech2text.LongSpeech2Text",
        "beam_size": 1,
        "best_path": True,
    }
    path.write_text("chunk_size: 16\nnum_left_chunks: 0\n")
    assert espnet2_config.convert_inference(path)["model"] == {
        "_target_": "src.speech2text.LongSpeech2Text",
        "chunk_size": 16,
        "num_left_chunks": 0,
    }
    path.write_text("best_path: false\nbeam_size: 1\n")
    assert espnet2_config.convert_inference(path)["model"] == {"beam_size": 1}
    path.write_text("best_path: 1\n")
    with pytest.raises(ValueError, match="best_path in .*decode.yaml must be"):
        espnet2_config.convert_inference(path)
