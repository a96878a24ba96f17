import contextlib
import subprocess
import sys

import pytest
import torch
from espnet2.main_funcs.pack_funcs import pack

from espnet_fastformer.bin import export, main
from espnet_fastformer.export import runtime, writers
from espnet_fastformer.export.kinds import KINDS
from tests.inference.models import CHARACTERS, make_experiment

FILES = [name for name, kind in KINDS.items() if not kind.is_for_streams]


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    return make_experiment(tmp_path_factory.mktemp("export") / "exp")


def run(exp, *args: str) -> int:
    return export.main(["--exp", str(exp), *args])


def stand_in(monkeypatch, format: str, factor: float) -> None:
    """Let the model, its output times a factor, stand in for a file of this format."""
    modules = []

    def write(module, num_feats, path, metadata):
        path.touch()
        modules.append(module)

    def run_file(feats, lengths):
        log_probs, olens = modules[0](feats, lengths)
        return factor * log_probs, olens

    monkeypatch.setitem(writers.WRITERS, format, write)
    monkeypatch.setattr(runtime, "load", lambda path: run_file)


@pytest.mark.parametrize("format", FILES)
def test_file_is_written_beside_the_parameters(format, exp, monkeypatch, capsys):
    if format != "torch_export":
        # To write them takes seconds: tests/export/test_writers.py does.
        stand_in(monkeypatch, format, 1.0)
    assert main.main(["export", "--exp", str(exp), "--format", format]) == 0
    path = exp / f"valid.cer_ctc.ave{KINDS[format].suffix}"
    output = capsys.readouterr().out
    assert output.startswith(f"{path}: posteriors differ")
    assert ("compare error rates" in output) == (format == "int8")
    assert path.is_file()
    log_probs, lengths = runtime.load(path)(torch.randn(1, 50, 20), torch.tensor([50]))
    assert log_probs.shape == (1, lengths.item(), len(CHARACTERS))
    assert not list(exp.glob(".*"))


def test_a_wrong_file_is_not_written(exp, tmp_path, monkeypatch, capsys):
    stand_in(monkeypatch, "torch_export", 0.5)
    output = tmp_path / "out" / "model.pt2"
    assert run(exp, "--format", "torch_export", "--output", str(output)) == 1
    assert f"{output} is not written" in capsys.readouterr().err
    assert not list(output.parent.iterdir())


@pytest.mark.parametrize("format", FILES)
def test_a_file_of_no_numbers_is_not_written(
    format, exp, tmp_path, monkeypatch, capsys
):
    stand_in(monkeypatch, format, float("nan"))
    output = tmp_path / "out" / f"model{KINDS[format].suffix}"
    assert run(exp, "--format", format, "--output", str(output)) == 1
    error = capsys.readouterr().err
    assert f"{output} is not written: " in error and "no number" in error
    assert not list(output.parent.iterdir())


def test_a_path_that_cannot_be_written_is_named(exp, tmp_path, capsys):
    (tmp_path / "file").touch()
    output = tmp_path / "file" / "model.onnx"
    with pytest.raises(SystemExit) as caught:
        run(exp, "--output", str(output))
    assert caught.value.code == 2
    assert f"cannot write to {output.parent}: " in capsys.readouterr().err


def test_of_an_archive_the_file_is_written_beside_it(
    exp, tmp_path, monkeypatch, capsys
):
    stand_in(monkeypatch, "torch_export", 1.0)
    archive = tmp_path / "v1.2.zip"
    with contextlib.chdir(exp.parent):
        pack(
            files={"asr_model_file": "exp/valid.cer_ctc.ave.pth"},
            yaml_files={"asr_train_config": "exp/config.yaml"},
            outpath=archive,
        )
    assert run(archive, "--format", "torch_export") == 0
    assert f"\n{tmp_path / 'v1.2.pt2'}: posteriors" in capsys.readouterr().out
    assert (tmp_path / "v1.2.pt2").is_file()


def test_a_wrong_suffix_is_named_at_once():
    script = """
import contextlib, sys
from espnet_fastformer.bin.export import main

with contextlib.suppress(SystemExit):
    main(["--exp", "nowhere", "--output", "model.txt"])
assert not {"torch", "espnet2"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--output must end in .onnx: model.txt" in done.stderr


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
        (["--exp", "EXP", "--chunk_size", "8"], "--chunk_size is for streams"),
        (
            ["--exp", "EXP", "--format", "streaming_onnx", "--output", __file__],
            "--output must be a directory",
        ),
        (["--exp", "EXP", "--format", "streaming_onnx"], "utterance_mvn"),
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
