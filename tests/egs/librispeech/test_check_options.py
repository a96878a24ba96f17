"""What is wrong with a config or a command is said at once, by its name."""

import re

import pytest
import yaml
from src.check_options import check_asr_options
from src.espnet2_config import parse_asr_config

from .conftest import RECIPE_DIR

CONF_DIR = RECIPE_DIR.parents[1] / "conf"
ENCODER = {"output_size": 16, "num_blocks": 1, "input_layer": "conv2d"}
CONFIG = {
    "encoder": "fastformer",
    "encoder_conf": ENCODER,
    "model_conf": {"ctc_weight": 1.0},
    "batch_type": "numel",
    "optim": "adam",
    "optim_conf": {"lr": 0.001},
    "scheduler": "steplr",
    "scheduler_conf": {"step_size": 2},
}


@pytest.fixture
def error(main, an4_corpus, tmp_path, capsys):
    """Run the recipe, which must refuse to, and return what it says."""

    def error(config, *options: str) -> str:
        path = tmp_path / "train.yaml"
        text = config if isinstance(config, str) else yaml.safe_dump(config)
        path.write_text(text)
        with pytest.raises(SystemExit) as caught:
            main(
                [
                    *("--corpus", str(an4_corpus.source_dir)),
                    *("--train_subsets", an4_corpus.train),
                    *("--valid_subsets", an4_corpus.valid),
                    *("--test_subsets", an4_corpus.test),
                    *("--asr_config", str(path), "--exp_dir", str(tmp_path / "exp")),
                    *("--data_dir", str(tmp_path / "data"), "--stages", "train"),
                    *options,
                ]
            )
        assert caught.value.code == 2
        # Nothing has begun.
        assert [p.name for p in tmp_path.iterdir()] == ["train.yaml"]
        return capsys.readouterr().err

    return error


@pytest.mark.parametrize(
    "options, least",
    [
        ([], 6 * 128),
        (["--frontend_conf", "hop_length=160"], 6 * 160),
        (["--encoder_conf", "input_layer=conv2d8"], 14 * 128),
        (["--speed_perturb_factors", "0.9", "1.0", "1.1"], 845),
    ],
)
def test_least_length_follows_from_the_model(
    main, an4_corpus, tmp_path, options, least
):
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    # The configs are written before any stage.
    with pytest.raises(SystemExit, match="run the stage train first"):
        main(
            [
                *("--corpus", str(an4_corpus.source_dir)),
                *("--train_subsets", an4_corpus.train),
                *("--valid_subsets", an4_corpus.valid),
                *("--test_subsets", an4_corpus.test),
                *("--asr_config", str(path), "--exp_dir", str(tmp_path / "exp")),
                *("--data_dir", str(tmp_path / "data"), "--stages", "infer"),
                *options,
            ]
        )
    training = yaml.safe_load((tmp_path / "exp" / "conf" / "training.yaml").read_text())
    assert training["create_dataset"]["min_samples"] == least


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoder": "fastformr"}, "encoder in .* must be one of .*fastformer"),
        ({"encoder_conf": None}, "encoder_conf in .* must be a mapping"),
        ({"encoder_conf": [1]}, "encoder_conf in .* must be a mapping"),
        (
            {"encoder_conf": {"num_block": 3}},
            "encoder_conf: num_block in .*: fastformer has no such",
        ),
        (
            {"encoder_conf": {"num_blocks": "3"}},
            "encoder_conf: num_blocks in .* is not an instance of int",
        ),
        ({"encoder_conf": {"output_size": 18}}, r"output_size \(18\) must be a mult"),
        (
            {"encoder_conf": {"dropout_rate": "1e-1"}},
            "encoder_conf: dropout_rate in .* is text to YAML",
        ),
        ({"frontend_conf": {"n_mels": 5}}, "input_layer: conv2d needs 7 features"),
        (
            {"model_conf": {"ctc_weigt": 1.0}},
            "model_conf: ctc_weigt in .* no such option",
        ),
        ({"optim": "adm"}, "optim in .* must be one of adam"),
        ({"optim_conf": {"lr": "1e-3"}}, "optim_conf: lr in .* is text to YAML"),
        (
            {"optim_conf": {"rate": 1.0}},
            "optim_conf: rate in .*: adam has no such option",
        ),
        (
            {"scheduler_conf": {"warmup": 1}},
            "scheduler_conf: warmup in .*: steplr has no such",
        ),
        ({"max_epoch": 0}, "max_epoch in .* from 1 on, but is 0"),
        ({"max_epoch": "many"}, "max_epoch: invalid int value: 'many'"),
        ({"max_epoch": [3]}, r"max_epoch in .* but is \[3\]"),
        ({"num_att_plot": -1}, "num_att_plot in .* from 0 on, but is -1"),
        ({"batch_bins": -1}, "batch_bins in .* from 1 on, but is -1"),
        ({"batch_type": "numl"}, "batch_type in .* must be one of .*numel"),
        ({"keep_nbest_models": []}, "keep_nbest_models in .* whole number"),
        ({"best_model_criterion": [["acc"]]}, r"best_model_criterion in .*\[\['acc'"),
        (
            {
                "best_model_criterion": [
                    ["train", "loss", "min"],
                    ["valid", "acc", "max"],
                ]
            },
            "best_model_criterion has only train/loss, valid/acc, which",
        ),
        ({"shuffle_within_batch": True}, "shuffle_within_batch in .*train.yaml"),
        ({"batch_type": "folded"}, r"needs fold_length: .* but that is \[\]"),
        ({"valid_batch_type": "catbel"}, "catbel needs a file of categories"),
        ({"scheduler": "warmupreducelronplateau"}, "scheduler in .* reducelronplateau"),
        ({"token_type": "bpe"}, "token_type: bpe in .*train.yaml is not .* char"),
        ({"no_such_option": 1}, "unrecognized arguments: no_such_option"),
    ],
)
def test_wrong_option_is_named(error, options, words):
    assert re.search(words, error(CONFIG | options))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("encoder: [fastformer", "train.yaml: while parsing"),
        ("- encoder: fastformer", "non dict value"),
        ("", "non dict value"),
    ],
)
def test_file_that_is_no_config_is_named(error, text, words):
    assert words in error(text)


def test_missing_config_is_named(error):
    assert "No such file: missing.yaml" in error(CONFIG, "--asr_config", "missing.yaml")


@pytest.mark.parametrize(
    "options",
    [
        ("--nbpe", "0"),
        ("--ngpu", "-1"),
        ("--nproc", "0"),
        ("--num_nodes", "0"),
        ("--max_hours", "-1"),
        ("--max_hours", "nan"),
        ("--speed_perturb_factors", "0.9", "0"),
        ("--speed_perturb_factors", "90", "100"),
    ],
)
def test_number_out_of_range_is_named(error, options):
    assert f"{options[0]} must be" in error(CONFIG, *options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--config", str(CONF_DIR / "train_asr_fastformer.yaml")),
            "--config .*train_asr_fastformer.yaml: give it as --asr_config",
        ),
        (("--ngpu", "999"), "--ngpu 999: PyTorch sees [0-9]+ GPUs here. Give --ngpu"),
        (("--train_subsets", "a", "b", "a/"), "--train_subsets names a subset twice"),
        *(
            (("--test_subsets", "test-an4", path), f"--test_subsets {path}: give the n")
            for path in ("/data/test", "test/clean", ".", "..")
        ),
        (("--corpus", "synthetic", "--corpus_conf", "hours=5"), "no hours, but train_"),
        (("--corpus", "mini", "--corpus_conf", "seed=5"), "no seed, but base_url"),
        (
            ("--corpus", "synthetic", "--corpus_conf", "train_hours=five"),
            '--corpus_conf: argument "train_hours"',
        ),
        (
            ("--corpus", "synthetic", "--corpus_conf", "n_workers=-1"),
            "--corpus_conf: n_workers must be above 0: -1",
        ),
    ],
)
def test_option_that_fits_no_corpus_or_machine_is_named(error, options, words):
    assert re.search(words, error(CONFIG, *options))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("beam_size: [2", "decode.yaml: while parsing"),
        ("- beam_size: 2", "decode.yaml must be a mapping of options"),
        ("beam_size: 2\nbeamsize: 2", "beamsize in .*decode.yaml"),
    ],
)
def test_wrong_decoding_config_is_named(error, tmp_path_factory, text, words):
    path = tmp_path_factory.mktemp("decode") / "decode.yaml"
    path.write_text(text)
    assert re.search(words, error(CONFIG, "--inference_config", str(path)))


@pytest.mark.parametrize(
    "path", sorted(CONF_DIR.glob("train_*.yaml")), ids=lambda path: path.stem
)
def test_every_config_passes(monkeypatch, path):
    check_asr_options(parse_asr_config(path), path)
