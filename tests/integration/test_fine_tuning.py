"""Models of ESPnet's own encoders, trained further as ours, averaged and moved."""

import logging

import numpy as np
import pytest
import torch
from espnet2.bin import asr_train, pack
from espnet2.bin.asr_inference import Speech2Text

from espnet_fastformer import register

from .espnet2_training import ENCODER, options, write_data

pytestmark = pytest.mark.slow

register()

THEIRS = {
    "e_branchformer": {"attention_layer_type": "fast_selfattn", "use_ffn": True},
    "branchformer": {"attention_layer_type": "fast_selfattn"},
}
POSITIONS = {"pos_enc_layer_type": "abs_pos"}


@pytest.fixture(autouse=True)
def keep_logging():
    """ESPnet's command sets up the root logger."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> list[str]:
    return write_data(tmp_path_factory.mktemp("data") / "all")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Directory of a model of each of ESPnet's encoders."""
    root = tmp_path_factory.mktemp("theirs")
    for name, encoder_conf in THEIRS.items():
        encoder_conf = ENCODER | POSITIONS | encoder_conf
        train(data, root / name, encoder=name, encoder_conf=encoder_conf)
    return root


def train(data, output_dir, *further: str, **config) -> dict[str, torch.Tensor]:
    asr_train.main([*options(data, output_dir, **config), *further])
    return load(output_dir)


def load(directory) -> dict[str, torch.Tensor]:
    return torch.load(directory / "1epoch.pth")


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)


@pytest.mark.parametrize("theirs", THEIRS)
def test_parameters_are_taken_over(theirs, trained, data, tmp_path, caplog):
    init_param = str(trained / theirs / "1epoch.pth")
    encoder_conf = ENCODER | THEIRS[theirs] | {"block_type": theirs}
    weights = train(
        *(data, tmp_path / "ours", "--init_param", init_param),
        encoder_conf=encoder_conf,
        optim_conf={"lr": 0.0},
    )
    assert_equal(weights, load(trained / theirs))
    assert "in the checkpoint" not in caplog.text
    models = [
        Speech2Text(d / "config.yaml", d / "1epoch.pth", beam_size=1).asr_model
        for d in (trained / theirs, tmp_path / "ours")
    ]
    speech = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 16000)))
    with torch.no_grad():
        outputs = [m.encode(speech.float(), torch.tensor([16000])) for m in models]
    torch.testing.assert_close(outputs[1][0], outputs[0][0], rtol=1e-4, atol=1e-5)


def test_parameters_that_do_not_match_are_reported(trained, data, tmp_path, caplog):
    theirs = str(trained / "e_branchformer" / "1epoch.pth")
    mismatch = ("--init_param", theirs, "--ignore_init_mismatch", "true")
    train(data, tmp_path / "aft", *mismatch, encoder="aft")
    assert "Filter out encoder.encoders.0.attn.query.weight" in caplog.text
    (report,) = [r for r in caplog.messages if "stay as they are" in r]
    assert "parameters of AFTEncoder are not in the checkpoint" in report
    assert "encoders.0.attn.linear_q.weight" in report
    caplog.clear()
    # ESPnet's decoders say nothing of it.
    Speech2Text(tmp_path / "aft" / "config.yaml", theirs, beam_size=1)
    missing, unknown = [r for r in caplog.messages if "checkpoint" in r]
    assert "encoders.0.attn.linear_q.weight" in missing
    assert "have no effect: encoder.encoders.0.attn.query.weight" in unknown


def test_frozen_parameters_stay(data, tmp_path):
    frozen = ("encoder.embed", "encoder.encoders.0")
    before = train(data, tmp_path / "before", optim_conf={"lr": 0.0})
    after = train(data, tmp_path / "after", "--freeze_param", *frozen)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not [name for name in changed if name.startswith(frozen)]
    assert "encoder.encoders.1.attn.query.weight" in changed


@pytest.mark.parametrize("encoder", ["fastformer", "aft"])
def test_lora(encoder, data, tmp_path):
    base = train(data, tmp_path / "base", encoder=encoder)
    targets = {
        "fastformer": ["attn.query", "attn.key", "attn.transform"],
        "aft": ["attn.linear_q", "attn.linear_k", "attn.linear_v"],
    }[encoder]
    tuned = train(
        *(data, tmp_path / "tuned", "--use_adapter", "true"),
        *("--init_param", str(tmp_path / "base" / "1epoch.pth")),
        encoder=encoder,
        adapter="lora",
        adapter_conf={"rank": 2, "dropout_rate": 0.1, "target_modules": targets},
        optim_conf={"lr": 0.1},
        freeze_param=sorted({name.split(".")[0] for name in base}),
    )
    added = {name for name in tuned if name not in base}
    assert len(added) == 2 * 3 * ENCODER["num_blocks"]
    assert all(".lora_" in name for name in added)
    assert any(tuned[name].any() for name in added if name.endswith("lora_B"))
    speech = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 16000))).float()

    def encode(directory, training: bool):
        model = Speech2Text(
            directory / "config.yaml", directory / "1epoch.pth", beam_size=1
        ).asr_model
        for module in model.modules():
            # That of the adapters, which trained with it.
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        with torch.no_grad():
            return model.train(training).encode(speech, torch.tensor([16000]))[0]

    merged = encode(tmp_path / "tuned", training=False)
    apart = encode(tmp_path / "tuned", training=True)
    torch.testing.assert_close(apart, merged, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(merged, encode(tmp_path / "base", training=False))


def test_average_is_packed_and_unpacked(data, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    # Archives are unpacked there.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    exp = tmp_path / "exp"
    train(data, exp, encoder="aft", max_epoch=2, keep_nbest_models=2)
    epochs = [torch.load(exp / f"{epoch}epoch.pth") for epoch in (1, 2)]
    average = torch.load(exp / "valid.loss.ave.pth")
    for name, weight in average.items():
        torch.testing.assert_close(weight, (epochs[0][name] + epochs[1][name]) / 2)

    files = ("--asr_train_config", "exp/config.yaml")
    files += ("--asr_model_file", "exp/valid.loss.ave.pth")
    pack.main(["asr", *files, "--outpath", "model.zip"])
    archive = (tmp_path / "model.zip").rename(tmp_path / "elsewhere.zip")
    exp.rename(tmp_path / "gone")
    model = Speech2Text.from_pretrained(str(archive), beam_size=1).asr_model
    assert_equal(dict(model.state_dict()), average)
    assert "in the checkpoint" not in caplog.text
