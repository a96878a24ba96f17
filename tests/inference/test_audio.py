import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from espnet_fastformer.inference import audio
from espnet_fastformer.inference.audio import (
    AudioError,
    duration,
    live_blocks,
    read_audio,
)

FS = 16000


def tones(seconds: float, fs: int, channels: int = 1) -> np.ndarray:
    """A tone a channel, (N, channels)."""
    time = np.arange(round(seconds * fs)) / fs
    pitches = 220 * np.arange(1, channels + 1)
    return (0.2 * np.sin(2 * np.pi * pitches * time[:, None])).astype("float32")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(audio, "_SECONDS_AT_ONCE", 1)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("fs", [8000, FS, 44100])
@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_every_format_rate_and_number_of_channels(suffix, fs, channels, tmp_path):
    samples = tones(2.5, fs, channels)
    path = tmp_path / f"audio.{suffix}"
    soundfile.write(path, samples, fs)
    speech = read_audio(path, FS)
    expected = soxr.resample(samples.mean(1), fs, FS)
    assert speech.dtype == np.float32
    assert len(speech) == len(expected)
    assert duration(path) == pytest.approx(2.5)
    # Of the same tones, which MP3 shifts in time.
    spectra = np.abs(np.fft.rfft([speech, expected] * np.hanning(len(speech))))
    assert np.corrcoef(spectra)[0, 1] > 0.8


@pytest.mark.parametrize("format", sorted({*soundfile.available_formats()} - {"RAW"}))
def test_whatever_soundfile_reads(format, tmp_path):
    for subtype in soundfile.available_subtypes(format):
        path = tmp_path / f"{subtype}.{format.lower()}"
        try:
            soundfile.write(path, tones(0.5, 8000), 8000, subtype, format=format)
            samples, fs = soundfile.read(path, dtype="float32")
        except soundfile.LibsndfileError:  # It cannot write this, or not read it.
            continue
        expected = soxr.resample(samples, fs, FS)
        np.testing.assert_allclose(read_audio(path, FS), expected, atol=1e-6)


def test_a_pipe(tmp_path):
    soundfile.write(tmp_path / "tone.flac", tones(2.5, FS), FS)
    content = (tmp_path / "tone.flac").read_bytes()
    source, target = os.pipe()
    writer = threading.Thread(target=os.fdopen(target, "wb").write, args=[content])
    writer.start()
    path = f"/dev/fd/{source}"
    assert duration(path) == 0.0
    speech = read_audio(path, FS)
    writer.join()
    os.close(source)
    np.testing.assert_array_equal(speech, read_audio(tmp_path / "tone.flac", FS))


def read_live(content: bytes) -> np.ndarray:
    source, target = os.pipe()
    with os.fdopen(target, "wb") as pipe:
        pipe.write(content)
    try:
        path = f"/dev/fd/{source}"
        return np.concatenate(list(live_blocks(path, FS, threading.Event())))
    finally:
        os.close(source)


def test_a_live_pipe():
    file = io.BytesIO()
    soundfile.write(file, tones(0.5, FS), FS, format="WAV")
    head, data, samples = file.getvalue().partition(b"data")
    size, samples = samples[:4], samples[4:]
    assert int.from_bytes(size, "little") == len(samples) == FS
    for promised in (b"\xff\xff\xff\xff", size):
        assert len(read_live(head + data + promised + samples)) == FS // 2
    with pytest.raises(AudioError, match="must leave the length open"):
        read_live(head + data + bytes(4) + samples)


@pytest.mark.parametrize("format", ["FLAC", "MP3"])
def test_a_live_pipe_of_what_goes_back_is_refused(format):
    file = io.BytesIO()
    soundfile.write(file, tones(0.5, FS), FS, format=format)
    with pytest.raises(AudioError):
        read_live(file.getvalue())


def test_a_name_that_is_no_text(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.wav")
    soundfile.write(os.fsencode(path), tones(0.5, FS), FS)
    assert duration(path) == 0.5
    assert read_audio(path, FS).shape == (FS // 2,)


# What is called as ffmpeg is and answers as it does, for machines without it: its
# video is a file of soundfile's after the letters VIDEO.
FFMPEG = f"""#!{sys.executable}
import io, sys
import soundfile
name = sys.argv[sys.argv.index("-i") + 1].removeprefix("file:")
content = open(name, "rb").read()
if not content.startswith(b"VIDEO"):
    sys.exit("Error opening input: Invalid data found when processing input")
samples, fs = soundfile.read(io.BytesIO(content[5:]))
sound = io.BytesIO()
soundfile.write(sound, samples, fs, "FLOAT", format="AU")
sys.stdout.buffer.write(sound.getvalue())
"""


@pytest.fixture
def video(tmp_path, monkeypatch) -> Path:
    """A file that ffmpeg alone reads: 2.5 s of two channels."""
    soundfile.write(tmp_path / "tone.wav", tones(2.5, 44100, 2), 44100, "FLOAT")
    path = tmp_path / "talk.mp4"
    if shutil.which("ffmpeg"):
        command = ["ffmpeg", "-v", "error", "-i", tmp_path / "tone.wav", path]
        subprocess.run(command, check=True)
    else:
        path.write_bytes(b"VIDEO" + (tmp_path / "tone.wav").read_bytes())
        program = tmp_path / "bin" / "ffmpeg"
        program.parent.mkdir()
        program.write_text(FFMPEG)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return path


def test_what_ffmpeg_reads(video, tmp_path, monkeypatch, caplog):
    speech = read_audio(video, FS)
    expected = soxr.resample(tones(2.5, 44100, 2).mean(1), 44100, FS)
    assert len(speech) == pytest.approx(len(expected), abs=0.1 * FS)
    spectra = np.abs(np.fft.rfft([speech[:FS], expected[:FS]] * np.hanning(FS)))
    assert np.corrcoef(spectra)[0, 1] > 0.8
    assert duration(video) == 0.0
    assert caplog.text == ""
    (tmp_path / "text.mp4").write_text("no audio")
    message = "text.mp4: ffmpeg: Error opening input.*: Invalid data"
    with pytest.raises(AudioError, match=message):
        read_audio(tmp_path / "text.mp4", FS)
    monkeypatch.setenv("PATH", "")
    message = "talk.mp4: Format not recognised. ffmpeg, .* is not installed"
    with pytest.raises(AudioError, match=message):
        read_audio(video, FS)


def test_blocks_are_resampled_as_the_whole(tmp_path):
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 3 * 22050 + 17)
    soundfile.write(tmp_path / "noise.wav", noise.astype("float32"), 22050, "FLOAT")
    expected = soxr.resample(noise.astype("float32"), 22050, FS)
    np.testing.assert_array_equal(read_audio(tmp_path / "noise.wav", FS), expected)


def test_a_file_without_samples_is_no_error(tmp_path):
    soundfile.write(tmp_path / "empty.wav", tones(0, FS), FS)
    assert read_audio(tmp_path / "empty.wav", FS).shape == (0,)
    soundfile.write(tmp_path / "empty8.wav", tones(0, 8000), 8000)
    assert read_audio(tmp_path / "empty8.wav", FS).shape == (0,)


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # without ffmpeg
    (tmp_path / "nothing.wav").touch()
    (tmp_path / "text.flac").write_text("no audio")
    whole = tmp_path / "whole.flac"
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 3 * FS)
    soundfile.write(whole, noise, FS)
    content = whole.read_bytes()
    (tmp_path / "cut.flac").write_bytes(content[: len(content) // 2])
    soundfile.write(tmp_path / "whole.wav", noise, FS)
    content = (tmp_path / "whole.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(content[: len(content) // 2])
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan]), FS, "FLOAT")
    (tmp_path / "samples.raw").write_bytes(content)
    for name, reason in {
        "missing.wav": "No such file or directory",
        ".": "Is a directory",
        "nothing.wav": "it is empty",
        "text.flac": "Format not recognised",
        "cut.flac": "lost sync",
        "cut.wav": "it ends early: 48,022 bytes that its header promises are missing",
        "nan.wav": "no number",
        "samples.raw": "raw samples do not tell their sampling rate",
    }.items():
        path = tmp_path / name
        with pytest.raises(AudioError, match=reason) as caught:
            read_audio(path, FS)
        assert str(caught.value).startswith(f"{path}: ")
    assert duration(tmp_path / "text.flac") == 0.0
    assert duration(tmp_path / "samples.raw") == 0.0


def test_a_file_that_ends_early_gives_a_warning(tmp_path, caplog):
    path = tmp_path / "cut.mp3"
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 3 * FS)
    soundfile.write(path, noise, FS)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert FS < len(read_audio(path, FS)) < 2 * FS
    assert f"{path}: it ends after 1." in caplog.text
    assert "its header says 3.0 s" in caplog.text
