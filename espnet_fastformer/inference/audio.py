"""Audio files of any length and format, as a model wants to hear them."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr

from espnet_fastformer.inference.truncation import missing_bytes

_SECONDS_AT_ONCE = 30
# What libsndfile says of a stream whose header does not tell.
_UNKNOWN_LENGTH = 2**63 - 1


class AudioError(Exception):
    """Raised when a file cannot be read; the message names it."""


def duration(path: str | Path) -> float:
    """Return the length in seconds, or 0.0 where it cannot be told."""
    try:
        info = soundfile.info(str(path))
    except (soundfile.SoundFileError, TypeError):  # TypeError for names in .raw
        return 0.0
    return 0.0 if info.frames == _UNKNOWN_LENGTH else info.frames / info.samplerate


def read_audio(path: str | Path, fs: int) -> np.ndarray:
    """Read a file that soundfile knows, mix its channels down and resample it.

    Args:
        path: Audio file.
        fs: Sampling rate wanted, in Hz.

    Returns:
        Samples (N,) between -1 and 1, float32.

    Raises:
        AudioError: If the file is missing, is no audio, is broken or has samples that
            are no numbers.
    """
    try:
        # libsndfile does not say why a file cannot be opened; this does.
        with open(path, "rb") as file:
            missing = missing_bytes(file)
        if missing:
            raise AudioError(
                f"{path}: it ends early: {missing:,} bytes that its header promises "
                "are missing"
            )
        if Path(path).suffix.lower() == ".raw":
            raise AudioError(
                f"{path}: raw samples do not tell their sampling rate; make it a WAV "
                "file, or rename it if it is one"
            )
        with soundfile.SoundFile(str(path)) as file:
            blocks = list(_resampled_blocks(file, fs))
            if file.tell() < file.frames != _UNKNOWN_LENGTH:
                # Not always a broken file: the header of an MP3 may be an estimate.
                logging.warning(
                    "%s: it ends after %.1f s, but its header says %.1f s",
                    path,
                    file.tell() / file.samplerate,
                    file.frames / file.samplerate,
                )
    except OSError as error:
        raise AudioError(f"{path}: {error.strerror}") from error
    except soundfile.SoundFileError as error:
        reason = getattr(error, "error_string", str(error))
        raise AudioError(f"{path}: {reason}") from error
    speech = np.concatenate(blocks)
    if not np.isfinite(speech).all():
        raise AudioError(f"{path}: it has infinite samples, or some that are no number")
    return speech


def _resampled_blocks(file: soundfile.SoundFile, fs: int) -> Iterator[np.ndarray]:
    resampler = None
    if file.samplerate != fs:
        resampler = soxr.ResampleStream(file.samplerate, fs, 1, dtype="float32")
    while True:
        channels = file.read(
            _SECONDS_AT_ONCE * file.samplerate, dtype="float32", always_2d=True
        )
        is_last = len(channels) == 0
        block = channels.mean(axis=1)
        yield block if resampler is None else resampler.resample_chunk(block, is_last)
        if is_last:
            break
