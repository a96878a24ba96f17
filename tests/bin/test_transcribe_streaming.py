"""`transcribe --streaming`: files, pipes that are written to, and how they end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soundfile

from espnet_fastformer.bin import transcribe
from espnet_fastformer.inference import audio
from espnet_fastformer.inference.streaming import StreamingTranscriber
from tests.inference.models import make_experiment, noise

CONF = {"input_layer": "conv2d", "block_size": 4}


@pytest.fixture(scope="module")
def exp(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "exp"
    return make_experiment(path, CONF, normalize=None)


@pytest.fixture
def talk(tmp_path) -> Path:
    path = tmp_path / "talk.wav"
    soundfile.write(path, noise(8), 16000)
    return path


def run(exp, *args) -> int:
    options = ["--exp", str(exp), "--ngpu", "0", "--streaming"]
    return transcribe.main([*options, *map(str, args)])


def start(exp, *args) -> subprocess.Popen:
    command = ["espnet_fastformer.bin.transcribe", "--exp", str(exp)]
    return subprocess.Popen(
        [sys.executable, "-m", *command, "--ngpu", "0", "--streaming", "-", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_text_words_and_formats_agree(exp, talk, capsys, tmp_path):
    assert run(exp, talk) == 0
    text = capsys.readouterr().out
    assert len(text.split()) > 5 and text.endswith("\n") and text.count("\n") == 1
    assert run(exp, talk, "--word_times") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [word for _, _, word in lines] == text.split()
    assert run(exp, talk, "--format", "json", "--word_times") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["text"] == text.strip()
    assert [[f"{w['start']:.3f}", f"{w['end']:.3f}"] for w in content["words"]] == [
        line[:2] for line in lines
    ]
    assert run(exp, talk, talk, "--chunk_size", "8", "--num_left_chunks", "2") == 0
    named = capsys.readouterr().out.splitlines()
    assert named[0] == named[1] and named[0].startswith(f"{talk}\t")
    assert named[0].partition("\t")[2] != text.strip()
    assert run(exp, talk, "--output_dir", tmp_path / "out", "--format", "srt") == 0
    assert (tmp_path / "out" / "talk.srt").read_text().startswith("1\n00:00:0")


def test_pipe_is_read_while_it_is_written(exp, talk):
    process = start(exp, "--word_times")
    content = talk.read_bytes()
    process.stdin.write(content[: len(content) * 3 // 4])
    process.stdin.flush()
    # Is there before the rest is.
    first = process.stdout.readline()
    assert first.count(b"\t") == 2
    process.stdin.write(content[len(content) * 3 // 4 : -1])  # Ends within a sample.
    rest, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    times = [float(line.split(b"\t")[0]) for line in rest.splitlines()]
    assert times == sorted(times) and times[-1] > 6


def test_ctrl_c_ends_with_all_that_was_said(exp, talk):
    process = start(exp)
    process.stdin.write(talk.read_bytes()[:-20000])
    process.stdin.flush()
    assert process.stdout.read(1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)  # The pipe stays open, and says nothing.
    out = process.stdout.read()
    assert process.wait(timeout=100) == 130
    assert out.endswith(b"\n") and len(out.split()) > 3
    assert b"Traceback" not in process.stderr.read()


def test_ctrl_c_loses_neither_transcript_nor_what_was_read(
    exp, talk, tmp_path, monkeypatch
):
    read, heard = [], []

    def count_read(*args):
        for block in blocks(*args):
            read.append(len(block))
            yield block

    def stop_at_first(self, speech, is_final=False):
        if not heard:
            signal.raise_signal(signal.SIGINT)
        heard.append(len(speech))
        return call(self, speech, is_final)

    blocks, call = audio.resampled_blocks, StreamingTranscriber.__call__
    monkeypatch.setattr(audio, "resampled_blocks", count_read)
    monkeypatch.setattr(StreamingTranscriber, "__call__", stop_at_first)
    options = "--format", "json", "--output_dir", tmp_path / "out"
    assert run(exp, talk, "never.wav", *options) == 130
    content = json.loads((tmp_path / "out" / "talk.json").read_text())
    assert content["text"]
    assert sum(heard) == sum(read) > 0
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_what_was_said_before_a_file_breaks_is_kept(exp, tmp_path, capsys):
    speech = noise(8)
    speech[110_000:] = float("nan")
    soundfile.write(tmp_path / "broken.wav", speech, 16000, "FLOAT")
    assert run(exp, tmp_path / "broken.wav") == 1
    out, err = capsys.readouterr()
    assert len(out.split()) > 3 and out.endswith("\n")
    assert "cannot read" in err and "broken.wav: it has infinite samples" in err
    options = "--format", "json", "--output_dir", tmp_path / "out"
    assert run(exp, tmp_path / "broken.wav", *options) == 1
    content = json.loads((tmp_path / "out" / "broken.json").read_text())
    assert content["text"] == out.strip()


def test_a_file_that_cannot_be_read_has_no_transcript(exp, talk, tmp_path, capsys):
    assert run(exp, tmp_path / "none.wav", talk) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{talk}\t") and out.count("\n") == 1
    assert "cannot read" in err


def test_closed_output_ends_it(exp, talk, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr(transcribe, "print", fail, raising=False)
    with pytest.raises(BrokenPipeError):
        transcribe.main.__wrapped__(["--exp", str(exp), "--streaming", str(talk)])
    assert "cannot" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--streaming", "--beam_size", "2"], "--beam_size is for whole recordings"),
        (["--streaming", "--pooling_window", "3"], "--pooling_window is for whole"),
        (["--chunk_size", "4"], "--chunk_size needs --streaming"),
        (["--num_left_chunks", "4"], "--num_left_chunks needs --streaming"),
        (["--streaming", "--chunk_size", "0"], "chunk_size must be at least 1"),
    ],
)
def test_options_that_do_not_go_together(exp, talk, capsys, options, message):
    with pytest.raises(SystemExit) as error:
        transcribe.main(["--exp", str(exp), "--ngpu", "0", str(talk), *options])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_model_of_whole_utterances_is_refused(talk, tmp_path, capsys):
    exp = make_experiment(tmp_path / "exp", CONF, normalize="utterance_mvn")
    with pytest.raises(SystemExit):
        run(exp, talk)
    assert "train with normalize: global_mvn" in capsys.readouterr().err
