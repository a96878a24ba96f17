"""LibriSpeech's directory layout, read and checked.

One directory a chapter holds the audio and one transcript file::

    SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NNNN.flac
    SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from tqdm import tqdm

SAMPLE_RATE = 16000
AUDIO_SUFFIXES = (".flac", ".wav", ".sph")
TRANSCRIPT_SUFFIX = ".trans.txt"
# For the T frames of a batch's longest utterance, ESPnet's frontend masks padding by a
# table of (T + 1)², 0.9 GB here.
MAX_SECONDS = 300
FLOATING_POINT = ("FLOAT", "DOUBLE")
# Opening a file waits for the disk or the network, whatever the number of cores.
CHECK_THREADS = 16
FILES_PER_TASK = 64


class Utterance(NamedTuple):
    """One line of a transcript and its audio file.

    ``num_samples`` is 0 until the audio has been checked; ``size`` (bytes) and
    ``mtime_ns`` tell whether the file has changed since.
    """

    utt_id: str
    audio: str
    text: str
    size: int
    mtime_ns: int
    num_samples: int = 0


class Problem(NamedTuple):
    """What is wrong, and the file (with ``:LINE`` in a transcript) it is wrong in."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class CorpusError(ValueError):
    """The corpus is not fit for use; the message names files and lines."""


def resolve_corpus(source_dir: str | Path) -> Path:
    """Return the directory that holds the subsets.

    Args:
        source_dir: That directory, or the one above it: archives of LibriSpeech
            unpack to ``LibriSpeech/SUBSET``.

    Raises:
        FileNotFoundError: There is no such directory.
    """
    root = Path(os.path.abspath(os.path.expanduser(source_dir)))
    if not root.is_dir():
        raise FileNotFoundError(
            f"Corpus directory not found: {root}. Correct source_dir, or run the "
            "create_dataset stage if the recipe is to make the corpus."
        )
    nested = root / "LibriSpeech"
    return nested if nested.is_dir() else root


def list_subsets(corpus: Path) -> list[str]:
    """Name the directories of ``corpus`` that have speakers in them."""
    return sorted(
        entry.name
        for entry in corpus.iterdir()
        if entry.is_dir() and any(child.is_dir() for child in entry.iterdir())
    )


def read_transcripts(subset_dir: Path) -> tuple[list[Utterance], list[Problem]]:
    """Pair the transcript lines of a subset with audio files, opening no audio.

    Args:
        subset_dir: Directory of one subset.

    Returns:
        The utterances in order of their names, and what is wrong with the rest:
        a transcript without audio, audio without a transcript, an empty or
        undecodable transcript, a name used twice.
    """
    found: dict[str, list[tuple[str, Utterance]]] = defaultdict(list)
    problems = []
    for directory, transcripts, audio in _chapters(subset_dir, problems):
        named = set()
        for where, utt_id, text in _transcript_lines(transcripts, problems):
            named.add(utt_id)
            files = audio.get(utt_id, [])
            if text is None:
                continue
            if not text:
                problems.append(Problem(where, f"empty transcript of {utt_id}"))
            elif not files:
                path = os.path.join(directory, f"{utt_id}.flac")
                problems.append(Problem(where, f"no audio file {path}"))
            elif len(files) > 1:
                names = ", ".join(map(os.path.basename, files))
                problems.append(Problem(where, f"several audio files: {names}"))
            else:
                try:
                    stat = os.stat(files[0])
                except OSError as error:
                    problems.append(Problem(where, f"unreadable audio: {error}"))
                    continue
                utterance = Utterance(
                    utt_id, files[0], text, stat.st_size, stat.st_mtime_ns
                )
                found[utt_id].append((where, utterance))
        problems += [
            Problem(path, "audio without a transcript")
            for utt_id in sorted(audio.keys() - named)
            for path in audio[utt_id]
        ]
    utterances = []
    for utt_id in sorted(found):
        (where, utterance), *others = found[utt_id]
        if others:
            problems += [
                Problem(other, f"utterance {utt_id} is also in {where}")
                for other, _ in others
            ]
        else:
            utterances.append(utterance)
    return utterances, problems


def check_audio(
    utterances: list[Utterance], desc: str
) -> tuple[list[Utterance], list[Problem]]:
    """Open every audio file, in parallel, and read its header and its end.

    Args:
        utterances: What to check.
        desc: Label of the progress bar.

    Returns:
        The utterances whose audio is whole, with ``num_samples``, and what is
        wrong with the others.
    """
    whole, problems = [], []
    with (
        ThreadPoolExecutor(CHECK_THREADS) as pool,
        tqdm(
            total=len(utterances),
            desc=desc,
            unit="file",
            disable=None if utterances else True,
        ) as progress,
    ):
        # A task a file would cost more than opening it.
        for checked in pool.map(_check_files, batched(utterances, FILES_PER_TASK)):
            for utterance, error in checked:
                if error is None:
                    whole.append(utterance)
                else:
                    problems.append(Problem(utterance.audio, error))
            progress.update(len(checked))
    return whole, problems


def _chapters(
    subset_dir: Path, problems: list[Problem]
) -> Iterator[tuple[str, list[str], dict[str, list[str]]]]:
    """Yield each directory, its transcript files, and its audio by file stem."""

    def unreadable(error: OSError) -> None:
        problems.append(Problem(error.filename, f"unreadable: {error.strerror}"))

    for directory, subdirs, files in os.walk(
        subset_dir, onerror=unreadable, followlinks=True
    ):
        subdirs.sort()
        transcripts, audio = [], defaultdict(list)
        for file in sorted(files):
            path = os.path.join(directory, file)
            if file.endswith(TRANSCRIPT_SUFFIX):
                transcripts.append(path)
            elif file.lower().endswith(AUDIO_SUFFIXES):
                audio[os.path.splitext(file)[0]].append(path)
        if transcripts or audio:
            yield directory, transcripts, audio


def _transcript_lines(
    transcripts: list[str], problems: list[Problem]
) -> Iterator[tuple[str, str, str | None]]:
    """Yield FILE:LINE, the utterance's name and its text (None: not decodable)."""
    for path in transcripts:
        for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
            where = f"{path}:{number}"
            try:
                # Unicode's spaces too, which ESPnet would strip off its token list.
                words = line.decode().split()
            except UnicodeDecodeError as error:
                problems.append(Problem(where, f"not UTF-8: {error}"))
                for utt_id in line.split()[:1]:
                    yield where, utt_id.decode(errors="replace"), None
                continue
            if words:
                yield where, words[0], " ".join(words[1:])


def _check_files(
    utterances: Sequence[Utterance],
) -> list[tuple[Utterance, str | None]]:
    """Fill in ``num_samples`` of each, or say what is wrong with its audio."""
    checked = []
    for utterance in utterances:
        try:
            num_samples = _count_samples(utterance)
        except ValueError as error:
            checked.append((utterance, str(error)))
        except (OSError, soundfile.SoundFileError) as error:
            checked.append((utterance, f"unreadable audio: {error}"))
        else:
            checked.append((utterance._replace(num_samples=num_samples), None))
    return checked


def _count_samples(utterance: Utterance) -> int:
    if not utterance.size:
        raise ValueError("empty file")
    with soundfile.SoundFile(utterance.audio) as audio:
        if audio.samplerate != SAMPLE_RATE:
            raise ValueError(
                f"sample rate {audio.samplerate} Hz, should be {SAMPLE_RATE} Hz"
            )
        if audio.channels != 1:
            raise ValueError(f"{audio.channels} channels, should be 1")
        if not audio.frames:
            raise ValueError("0 samples")
        if audio.frames > MAX_SECONDS * SAMPLE_RATE:
            raise ValueError(
                f"{audio.frames} samples, should be {MAX_SECONDS} s or less: cut it up"
            )
        if audio.subtype in FLOATING_POINT:
            # Only these can hold what is no number, which takes reading all of it.
            blocks = audio.blocks(SAMPLE_RATE, dtype="float32")
            if not all(np.isfinite(block).all() for block in blocks):
                raise ValueError("has infinite samples, or some that are no number")
        # A download cut short keeps its header: only the end tells.
        audio.seek(audio.frames - 1)
        if len(audio.read(1)) != 1:
            raise ValueError("ends early")
        return audio.frames
