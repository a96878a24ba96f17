import sys

import pytest
import torch

from espnet_fastformer.bin import export, main
from espnet_fastformer.export import formats
from espnet_fastformer.export.runtime import load
from tests.inference.models import CHARACTERS, make_experiment


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    return make_experiment(tmp_path_factory.mktemp("export") / "exp")


def run(exp, *args: str) -> int:
    return export.main(["--exp", str(exp), *args])


@pytest.mark.parametrize("format", formats.WRITERS)
def test_file_is_written_beside_the_parameters(format, exp, capsys):
    if format != "torch_export":
        pytest.importorskip("onnx")
    assert main.main(["export", "--exp", str(exp), "--format", format]) == 0
    path = exp / f"valid.cer_ctc.ave{formats.SUFFIXES[format]}"
    assert capsys.readouterr().out.startswith(f"{path}: posteriors differ")
    log_probs, lengths = load(path)(torch.randn(1, 50, 20), torch.tensor([50]))
    assert log_probs.shape == (1, lengths.item(), len(CHARACTERS))
    assert not list(exp.glob(".*"))


def test_a_wrong_file_is_not_written(exp, tmp_path, monkeypatch, capsys):
    def write(module, num_feats, path, metadata):
        exact(module, num_feats, path, metadata)
        torch.nn.init.normal_(module.ctc.ctc_lo.bias)

    exact = formats.WRITERS["torch_export"]
    monkeypatch.setitem(formats.WRITERS, "torch_export", write)
    output = tmp_path / "out" / "model.pt2"
    assert run(exp, "--format", "torch_export", "--output", str(output)) == 1
    assert f"{output} is not written" in capsys.readouterr().err
    assert not list(output.parent.iterdir())


def test_missing_packages_are_named(exp, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(SystemExit):
        run(exp, "--format", "onnx")
    error = capsys.readouterr().err
    assert "onnxscript" in error and "espnet-fastformer[onnx]" in error


@pytest.mark.parametrize(
    "args, words",
    [
        ([], "--exp is needed"),
        (["--exp", "nowhere"], "nowhere/config.yaml"),
        (["--exp", "EXP", "--output", "model.pt2"], "--output must end in .onnx"),
        (["--exp", "EXP", "--format", "tflite"], "--format"),
    ],
)
def test_wrong_options_are_named(args, words, exp, capsys):
    with pytest.raises(SystemExit) as caught:
        export.main([str(exp) if arg == "EXP" else arg for arg in args])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_model_without_ctc_is_refused(tmp_path, capsys):
    exp = make_experiment(
        tmp_path / "exp", decoder="transformer", model_conf={"ctc_weight": 0.0}
    )
    with pytest.raises(SystemExit):
        run(exp, "--format", "torch_export")
    assert "no CTC output" in capsys.readouterr().err
