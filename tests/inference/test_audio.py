import numpy as np
import pytest
import soundfile
import soxr

from espnet_fastformer.inference import audio
from espnet_fastformer.inference.audio import AudioError, duration, read_audio

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


def test_what_cannot_be_read_is_named(tmp_path):
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
        "nothing.wav": "Format not recognised",
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
