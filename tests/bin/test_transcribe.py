import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
import torch
import yaml

from espnet_fastformer.bin import main, transcribe
from espnet_fastformer.encoder.fastformer_encoder import FastformerEncoder
from tests.inference.models import make_experiment, noise


@pytest.fixture(scope="module")
def exp(tmp_path_factory) -> Path:
    return make_experiment(tmp_path_factory.mktemp("model") / "exp")


@pytest.fixture
def audio(tmp_path, monkeypatch) -> Path:
    """A directory with recordings, and with files that are none."""
    monkeypatch.chdir(tmp_path)
    speech = noise(3)
    soundfile.write("mono.wav", speech, 16000)
    soundfile.write("mono.flac", speech, 16000)
    soundfile.write("stereo.ogg", speech[:, None].repeat(2, axis=1), 16000)
    soundfile.write("telephone.wav", speech[::2], 8000)
    soundfile.write("empty.wav", speech[:0], 16000)
    Path("text.wav").write_text("no audio")
    return tmp_path


def run(exp, *args) -> int:
    return transcribe.main(["--exp", str(exp), "--ngpu", "0", *args])


def test_text_of_one_file(exp, audio, capsys):
    assert run(exp, "mono.wav") == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"[A-J<unk> ]{20,}\n", out)
    assert err == ""


def test_text_of_many_files_says_whose_it_is(exp, audio, capsys):
    names = ["mono.wav", "mono.flac", "stereo.ogg", "telephone.wav", "empty.wav"]
    assert run(exp, *names) == 0
    lines = capsys.readouterr().out.splitlines()
    texts = dict(line.split("\t") for line in lines)
    assert list(texts) == names
    assert texts["mono.wav"] == texts["mono.flac"]
    assert texts["telephone.wav"] not in ("", texts["mono.wav"])
    assert texts["empty.wav"] == ""


def test_odd_recordings_have_a_text_or_an_error(exp, audio, capsys):
    speech = noise(1)
    soundfile.write("clipped.wav", 100 * speech, 16000)
    soundfile.write("loud.wav", 100 * speech, 16000, "FLOAT")
    soundfile.write("silent.wav", 0 * speech, 16000)
    soundfile.write("short.wav", speech[:800], 16000)
    soundfile.write("nan.wav", speech / speech[-1:] * float("nan"), 16000, "FLOAT")
    names = ["clipped.wav", "loud.wav", "silent.wav", "short.wav", "nan.wav"]
    assert run(exp, *names) == 1
    out, err = capsys.readouterr()
    texts = dict(line.split("\t") for line in out.splitlines())
    assert list(texts) == names[:-1]
    assert texts["clipped.wav"] and texts["loud.wav"]
    assert not texts["short.wav"] and not texts["silent.wav"]
    assert err.splitlines()[-1] == (
        "cannot read nan.wav: it has infinite samples, or some that are no number"
    )


def test_what_cannot_be_read_is_named_and_the_others_are_done(
    exp, audio, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", "")  # without ffmpeg
    Path("samples.raw").write_bytes(Path("mono.wav").read_bytes())
    names = ["text.wav", "samples.raw", "mono.wav", "missing.flac", "mono.flac"]
    assert run(exp, "--format", "json", *names) == 1
    out, err = capsys.readouterr()
    done = [json.loads(line) for line in out.splitlines()]
    assert [content["audio"] for content in done] == ["mono.wav", "mono.flac"]
    assert err == (
        "cannot read text.wav: Format not recognised. ffmpeg, which reads more "
        "formats, is not installed.\n"
        "cannot read samples.raw: raw samples do not tell their sampling rate; make "
        "it a WAV file, or rename it if it is one\n"
        "cannot read missing.flac: No such file or directory\n"
    )


def test_word_times(exp, audio, capsys):
    run(exp, "mono.wav")
    text = capsys.readouterr().out
    run(exp, "--word_times", "mono.wav")
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[2] for row in rows] == text.split()
    run(exp, "--word_times", "--format", "json", "mono.wav")
    (content,) = map(json.loads, capsys.readouterr().out.splitlines())
    words = [
        [f"{w['start']:.3f}", f"{w['end']:.3f}", w["word"]] for w in content["words"]
    ]
    assert words == rows
    assert content["text"] + "\n" == text


def test_a_file_for_each_recording(exp, audio, capsys):
    for name, suffix in (("text", "txt"), ("json", "json"), ("srt", "srt")):
        out = audio / name
        options = ["--format", name, "--output_dir", str(out)]
        assert run(exp, *options, "mono.wav", "text.wav", "stereo.ogg") == 1
        files = sorted(path.name for path in out.iterdir())
        assert files == [f"mono.{suffix}", f"stereo.{suffix}"]
    assert capsys.readouterr().out == ""
    text = (audio / "text" / "mono.txt").read_text()
    assert json.loads((audio / "json" / "mono.json").read_text()) == {
        "audio": "mono.wav",
        "text": text.strip(),
    }
    subtitles = (audio / "srt" / "mono.srt").read_text()
    assert subtitles.startswith("1\n00:00:00,")
    said = [line for line in subtitles.split("\n") if re.match("[A-Z<]", line)]
    assert " ".join(said).split() == text.split()


@pytest.mark.parametrize(
    "error, words",
    [
        (
            torch.OutOfMemoryError("CUDA out of memory.\nat line 5"),
            "CUDA out of memory. (--pooling_window 30 needs less memory)",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 5 bytes"),
            "DefaultCPUAllocator: can't allocate memory: 5 bytes (--pooling_window 30 "
            "needs less memory)",
        ),
        (MemoryError(), "MemoryError (--pooling_window 30 needs less memory)"),
        (RuntimeError("of another kind"), "of another kind"),
    ],
)
def test_an_error_of_the_model_ends_no_other_file(
    error, words, exp, audio, monkeypatch, capsys
):
    def forward(encoder, feats, *args, **options):
        if feats.size(1) > 400:
            raise error
        return whole(encoder, feats, *args, **options)

    whole = FastformerEncoder.forward
    monkeypatch.setattr(FastformerEncoder, "forward", forward)
    soundfile.write("long.wav", noise(5), 16000)
    assert run(exp, "mono.wav", "long.wav", "mono.flac") == 1
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == [
        "mono.wav",
        "mono.flac",
    ]
    assert err == f"cannot transcribe long.wav: {words}\n"


def test_what_would_overwrite_another_transcript_is_left_out(exp, audio, capsys):
    assert run(exp, "--output_dir", "out", "mono.wav", "mono.flac", "stereo.ogg") == 1
    assert sorted(os.listdir("out")) == ["mono.txt", "stereo.txt"]
    assert capsys.readouterr().err.splitlines() == [
        "mono.wav and mono.flac would both become out/mono.txt: the second is left "
        "out; it needs another name or --output_dir",
        "wrote out/mono.txt",
        "wrote out/stereo.txt",
    ]


@pytest.mark.parametrize("name", [b"caf\xe9.wav", "x" * 250 + ".wav"])
@pytest.mark.parametrize("format", ["json", "text"])
def test_any_name(format, name, exp, audio, capsys):
    name = os.fsdecode(name)
    Path("mono.wav").rename(name)
    options = ["--format", format, name]
    assert run(exp, *options, "mono.flac") == 0
    lines = capsys.readouterr().out.splitlines()
    if format == "json":
        assert json.loads(lines[0])["audio"] == name
    assert len(lines) == 2
    assert run(exp, *options, "--output_dir", "out") == 0
    (written,) = Path("out").iterdir()
    assert written.stem == name.removesuffix(".wav")
    if format == "json":
        assert json.loads(written.read_text())["audio"] == name


@pytest.mark.parametrize("format", ["json", "text"])
def test_json_is_utf_8_and_text_is_escaped(format, exp, audio, monkeypatch):
    Path("mono.wav").rename("ä漢𝄞.wav")
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run(exp, "--format", format, "ä漢𝄞.wav", "mono.flac") == 0
    first, _ = stdout.buffer.getvalue().splitlines()
    if format == "json":
        assert json.loads(first.decode())["audio"] == "ä漢𝄞.wav"
    else:
        assert first.startswith(rb"\xe4\u6f22\U0001d11e.wav")


def test_standard_input_and_pipes(exp, audio, capsys):
    run(exp, "mono.wav")
    text = capsys.readouterr().out
    with subprocess.Popen(["cat", "mono.flac"], stdout=subprocess.PIPE) as cat:
        pipe = f"/dev/fd/{cat.stdout.fileno()}"
        assert run(exp, "--output_dir", "out", pipe) == 0
    (written,) = Path("out").iterdir()
    assert written.read_text() == text
    with subprocess.Popen(["cat", "mono.wav"], stdout=subprocess.PIPE) as cat:
        stdin = os.dup(0)
        os.dup2(cat.stdout.fileno(), 0)
        try:
            assert run(exp, "--output_dir", "out", "-") == 0
        finally:
            os.dup2(stdin, 0)
            os.close(stdin)
    assert Path("out/stdin.txt").read_text() == text


def test_nothing_is_half_written(exp, audio, monkeypatch, capsys):
    Path("out").mkdir()
    Path("out/mono.txt").write_text("what was there")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    assert run(exp, "--output_dir", "out", "mono.wav") == 1
    assert capsys.readouterr().err == "cannot write out/mono.txt: disk full\n"
    assert [path.name for path in Path("out").iterdir()] == ["mono.txt"]
    assert Path("out/mono.txt").read_text() == "what was there"


def test_model_options(exp, audio, capsys):
    run(exp, "mono.wav")
    text = capsys.readouterr().out
    files = ["--asr_train_config", str(exp / "config.yaml")]
    files += ["--asr_model_file", str(exp / "valid.cer_ctc.ave.pth")]
    assert transcribe.main([*files, "--ngpu", "0", "mono.wav"]) == 0
    assert capsys.readouterr().out == text
    assert run(exp, "--dtype", "bfloat16", "--pooling_window", "1", "mono.wav") == 0
    assert capsys.readouterr().out not in ("\n", text)


@pytest.mark.parametrize(
    "args, words",
    [
        (["a.wav"], "--exp is needed"),
        (["--exp", "nowhere", "a.wav"], "nowhere/config.yaml"),
        (["--exp", "EXP", "--format", "srt", "a.wav", "b.wav"], "--output_dir"),
        (["--exp", "EXP", "--beam_size", "0", "a.wav"], "--beam_size"),
        (["--exp", "EXP", "--beam_size", "4", "a.wav"], "no decoder"),
        (["--exp", "EXP", "--beam_size", "4", "--word_times", "a.wav"], "--word_times"),
        (["--exp", "EXP", "--pooling_window", "-1", "a.wav"], "pooling_window"),
        (["--exp", "EXP", "--pooling_window", "inf", "a.wav"], "pooling_window"),
    ],
)
def test_wrong_options_are_named(args, words, exp, capsys):
    with pytest.raises(SystemExit) as caught:
        transcribe.main([str(exp) if arg == "EXP" else arg for arg in args])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_missing_statistics_are_explained(audio, exp, capsys):
    config = (exp / "config.yaml").read_text()
    config = config.replace("normalize: utterance_mvn", "normalize: global_mvn")
    config = config.replace("normalize_conf: {}", "normalize_conf: {stats_file: s.npz}")
    Path("config.yaml").write_text(config)
    with pytest.raises(SystemExit):
        run(exp, "--asr_train_config", "config.yaml", "mono.wav")
    assert "s.npz" in (error := capsys.readouterr().err)
    assert "training was started" in error


def test_what_the_options_name_is_explained_by_nothing_else(audio, exp, capsys):
    Path("empty").mkdir()
    for options, words in (
        (["--exp", "nowhere"], "nowhere/config.yaml: No such file or directory\n"),
        (["--exp", "empty"], "empty has no config.yaml, as experiments have, and no "),
        (["--exp", str(exp), "--asr_model_file", "a.pth"], "error: a.pth: No such"),
        (["--exp", str(exp), "--asr_train_config", "a.yaml"], "error: a.yaml: No such"),
    ):
        with pytest.raises(SystemExit) as caught:
            transcribe.main([*options, "mono.wav"])
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert words in error and "training was started" not in error


@pytest.mark.parametrize(
    "config, words",
    [
        ("encoder: [", "make no model"),
        ("[]", "make no model"),
        ("{}", "make no model"),
        ({"encoder_conf": {"num_blocks": 0}}, "num_blocks must be at least 1"),
        ({"encoder": "no_such"}, "no_such"),
        ({"token_list": ["<blank>", "A", "<sos/eos>"]}, "size mismatch"),
    ],
)
def test_unfit_config_is_named(config, words, audio, exp, capsys):
    if isinstance(config, dict):
        known = yaml.safe_load((exp / "config.yaml").read_text())
        config = yaml.safe_dump(known | config)
    Path("odd.yaml").write_text(config)
    with pytest.raises(SystemExit) as caught:
        run(exp, "--asr_train_config", "odd.yaml", "mono.wav")
    assert caught.value.code == 2
    assert words in (error := capsys.readouterr().err) and "odd.yaml" in error


def test_unfit_parameters_are_named(audio, exp, capsys):
    parameters = torch.load(exp / "valid.cer_ctc.ave.pth")
    parameters["encoder.renamed"] = parameters.pop("encoder.after_norm.weight")
    torch.save(parameters, "odd.pth")
    for content, words in (
        (None, "lacks 1 of"),
        (b"", "holds no parameters"),
        (b"PK\x03\x04", "holds no parameters"),
    ):
        if content is not None:
            Path("odd.pth").write_bytes(content)
        with pytest.raises(SystemExit) as caught:
            run(exp, "--asr_model_file", "odd.pth", "mono.wav")
        assert caught.value.code == 2
        assert words in (error := capsys.readouterr().err) and "odd.pth" in error


def test_installed_command_runs_it(exp, audio, capsys):
    assert main.main(["transcribe", "--exp", str(exp), "--ngpu", "0", "mono.wav"]) == 0
    out = capsys.readouterr().out
    run(exp, "mono.wav")
    assert capsys.readouterr().out == out
    with pytest.raises(SystemExit):
        main.main(["--help"])
    assert "transcribe: write down" in capsys.readouterr().out


def test_module_gives_the_exit_status(exp, audio, monkeypatch, capsys):
    command = ["transcribe", "--exp", str(exp), "--ngpu", "0", "mono.wav", "text.wav"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.delitem(sys.modules, "espnet_fastformer.bin.transcribe")
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("espnet_fastformer.bin.transcribe", run_name="__main__")
    assert caught.value.code == 1
    assert capsys.readouterr().out.startswith("mono.wav\t")
