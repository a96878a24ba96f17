"""Audio files of any length and format, as a model wants to hear them."""

import logging
import os
import queue
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from espnet_fastformer.inference.truncation import missing_bytes

#: The name of standard input.
STDIN = "-"
_SECONDS_AT_ONCE = 30
_LIVE_SECONDS = 0.1
# Frames, of a stream whose header does not tell: libsndfile says 2**63 - 1, or that
# over the size of a frame.
_UNKNOWN_LENGTH = 2**48
# Of a header, in seconds: what resampling may round.
_TOLERANCE = 0.01


class AudioError(Exception):
    """Raised when a file cannot be read; the message names it."""


def duration(path: str | Path) -> float:
    """Return the length in seconds, or 0.0 where it cannot be told, as of a pipe."""
    if not os.path.isfile(path):  # What is read from a pipe is gone.
        return 0.0
    try:
        info = soundfile.info(os.fsencode(path))
    except (soundfile.SoundFileError, TypeError):  # TypeError for names in .raw
        return 0.0
    return 0.0 if info.frames >= _UNKNOWN_LENGTH else info.frames / info.samplerate


def read_audio(path: str | Path, fs: int) -> np.ndarray:
    """Read a recording, mix its channels down and resample it.

    Args:
        path: Audio file or pipe, or ``STDIN``, of a format that soundfile knows, or
            ffmpeg where it is installed.
        fs: Sampling rate wanted, in Hz.

    Returns:
        Samples (N,) between -1 and 1, float32.

    Raises:
        AudioError: If the file is missing, is no audio, is broken or has samples that
            are no numbers.
    """
    try:
        with open_audio(path) as file:
            speech = np.concatenate(list(resampled_blocks(file, fs)))
            seconds, expected = len(speech) / fs, file.frames / file.samplerate
            if seconds < expected - _TOLERANCE and file.frames < _UNKNOWN_LENGTH:
                # Not always a broken file: the header of an MP3 may be an estimate.
                logging.warning(
                    "%s: it ends after %.1f s, but its header says %.1f s",
                    path,
                    seconds,
                    expected,
                )
    except OSError as error:
        raise AudioError(f"{path}: {error.strerror}") from error
    except soundfile.SoundFileError as error:
        raise AudioError(f"{path}: {_reason(error)}") from error
    if not np.isfinite(speech).all():
        raise AudioError(f"{path}: it has infinite samples, or some that are no number")
    return speech


@contextmanager
def open_audio(path: str | Path) -> Iterator[soundfile.SoundFile]:
    """Open what ``read_audio`` reads; raise what it raises, OSError or soundfile's."""
    if Path(path).suffix.lower() == ".raw":
        raise AudioError(
            f"{path}: raw samples do not tell their sampling rate; make it a WAV "
            "file, or rename it if it is one"
        )
    with _regular_file(path) as regular:
        if missing := missing_bytes(regular):
            raise AudioError(
                f"{path}: it ends early: {missing:,} bytes that its header promises "
                "are missing"
            )
        try:
            file = soundfile.SoundFile(os.fsencode(regular.name))
        except soundfile.SoundFileError as error:
            if shutil.which("ffmpeg") is None:
                raise AudioError(
                    f"{path}: {_reason(error)} ffmpeg, which reads more formats, is "
                    "not installed."
                ) from error
            with _decoded_by_ffmpeg(regular.name, path) as file:
                yield file
            return
        with file:
            yield file


@contextmanager
def open_live(path: str | Path) -> Iterator[soundfile.SoundFile]:
    """Open a pipe that is read while it is written, else as :func:`open_audio`."""
    is_stdin = str(path) == STDIN
    mode = os.stat(0 if is_stdin else path).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        with open_audio(path) as file:
            yield file
        return
    with open(0 if is_stdin else path, "rb", buffering=0, closefd=not is_stdin) as pipe:
        with soundfile.SoundFile(pipe.fileno(), closefd=False) as file:
            # In these libsndfile goes back; what has no samples has a header that was
            # written before it was known how many there are.
            if file.format in ("FLAC", "MP3") or file.frames == 0:
                raise AudioError(
                    f"{path}: a pipe must be WAV, AU or OGG, and its header must leave "
                    "the length open, as that of ... | ffmpeg -i - -f wav - | ..."
                )
            yield file


def resampled_blocks(
    file: soundfile.SoundFile, fs: int, seconds: float = _SECONDS_AT_ONCE
) -> Iterator[np.ndarray]:
    """Read a file to its end, block by block.

    Args:
        file: What is read, be it a pipe in which no one can seek.
        fs: Sampling rate wanted, in Hz.
        seconds: Length of a block.

    Yields:
        Samples (n,) of all channels' mean, float32.
    """
    resampler = None
    if file.samplerate != fs:
        resampler = soxr.ResampleStream(file.samplerate, fs, 1, dtype="float32")
    while True:
        channels = file.read(
            round(seconds * file.samplerate), dtype="float32", always_2d=True
        )
        is_last = len(channels) == 0
        block = channels.mean(axis=1)
        yield block if resampler is None else resampler.resample_chunk(block, is_last)
        if is_last:
            break


def live_blocks(
    path: str | Path, fs: int, is_stopped: threading.Event
) -> Iterator[np.ndarray]:
    """Read a recording while it goes on, to its end or until it is stopped.

    Args:
        path: As of :func:`read_audio`, but a pipe must be WAV, AU or OGG.
        fs: Sampling rate wanted, in Hz.
        is_stopped: Ends the recording, even if a pipe is silent.

    Yields:
        Samples (n,) as they come, float32.

    Raises:
        AudioError: As :func:`read_audio`.
    """
    blocks: queue.Queue[np.ndarray | Exception | None] = queue.Queue(maxsize=64)

    def read() -> None:
        try:
            with open_live(path) as file:
                for block in resampled_blocks(file, fs, _LIVE_SECONDS):
                    blocks.put(block)
                    if is_stopped.is_set():
                        break
            blocks.put(None)
        except Exception as error:
            blocks.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            block = blocks.get(timeout=_LIVE_SECONDS)
        except queue.Empty:
            if is_stopped.is_set():  # All that was read has been handed on.
                return
            continue
        if block is None:
            return
        if isinstance(block, OSError):
            raise AudioError(f"{path}: {block.strerror}") from block
        if isinstance(block, soundfile.SoundFileError):
            raise AudioError(f"{path}: {_reason(block)}") from block
        if isinstance(block, Exception):
            raise block
        if not np.isfinite(block).all():
            raise AudioError(f"{path}: it has infinite samples, or some no number")
        yield block


def _reason(error: soundfile.SoundFileError) -> str:
    return getattr(error, "error_string", str(error))


@contextmanager
def _regular_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that can be opened again by its name: a copy of a pipe."""
    is_stdin = str(path) == STDIN
    # libsndfile does not say why a file cannot be opened; this does.
    with open(0 if is_stdin else path, "rb", closefd=not is_stdin) as source:
        if not source.peek(1):
            raise AudioError(f"{path}: it is empty")
        if not (is_stdin or stat.S_ISFIFO(os.fstat(source.fileno()).st_mode)):
            yield source
            return
        with tempfile.NamedTemporaryFile() as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            yield copy


@contextmanager
def _decoded_by_ffmpeg(
    name: str | Path, path: str | Path
) -> Iterator[soundfile.SoundFile]:
    """Open the sound of any file that ffmpeg knows; errors call it ``path``."""
    # Sun's format is one that libsndfile reads from pipes.
    to_pipe = ["-vn", "-f", "au", "-c:a", "pcm_f32be", "-"]
    # /dev/stdin is another file there.
    source = b"file:" + os.fsencode(os.path.realpath(name))
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            ["ffmpeg", "-v", "error", "-nostdin", "-i", source, *to_pipe],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):

        def last_words() -> str:
            log.seek(0)
            return log.read().decode(errors="replace").strip().rpartition("\n")[2]

        try:
            with soundfile.SoundFile(process.stdout.fileno(), closefd=False) as file:
                yield file
        except soundfile.SoundFileError:
            process.stdout.close()
            if process.wait() == 0:
                raise
        if process.wait() != 0:
            raise AudioError(f"{path}: ffmpeg: {last_words()}")
        if words := last_words():
            logging.warning("%s: ffmpeg: %s", path, words)
