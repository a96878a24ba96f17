"""LibriSpeech's directory layout, read and checked.

ESPnet3's reader passes over a transcript without audio, and opens none before training.

One directory a chapter holds the audio and one transcript file::

    SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NNNN.flac
    SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from tqdm import tqdm

from espnet_fastformer.inference.truncation import missing_bytes

SAMPLE_RATE = 16000
AUDIO_SUFFIXES = (".flac", ".wav", ".sph")
TRANSCRIPT_SUFFIX = ".trans.txt"
# For the T frames of a batch's longest utterance, ESPnet's frontend masks padding by a
# table of (T + 1)², 0.9 GB here.
MAX_SECONDS = 300
# What libsndfile says of a stream whose header does not tell.
UNKNOWN_LENGTH = 2**63 - 1
# Reading a file waits for the disk or the network, whatever the number of cores.
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
        # File names may be no text: they come and go as bytes.
        return os.fsencode(f"{self.where}: {self.what}").decode(
            errors="backslashreplace"
        )


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
        if entry.is_dir()
        and not entry.name.startswith(".")
        and any(child.is_dir() for child in entry.iterdir())
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
    for directory, transcripts, audio, others in _chapters(subset_dir, problems):
        contents = {path: _read(path, problems) for path in transcripts}
        named = set()
        for where, utt_id, text in _transcript_lines(contents, problems):
            named.add(utt_id)
            files = audio.get(utt_id, [])
            if text is None:
                continue
            if not text:
                problems.append(Problem(where, f"empty transcript of {utt_id}"))
            elif not files:
                path = os.path.join(directory, f"{utt_id}.flac")
                found_instead = ", ".join(others.get(utt_id, []))
                but = f", but {found_instead}: convert it" if found_instead else ""
                problems.append(
                    Problem(where, f"no audio file {path} (or .wav, .sph){but}")
                )
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
        if None in contents.values():
            # It may be there that the other files are named.
            continue
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
    utterances: list[Utterance], desc: str, nj: int = 1
) -> tuple[list[Utterance], list[Problem]]:
    """Decode every audio file, in parallel.

    Args:
        utterances: What to check.
        desc: Label of the progress bar.
        nj: Files to decode at the same time, if more than ``CHECK_THREADS``.

    Returns:
        The utterances whose audio is whole, with ``num_samples``, and what is
        wrong with the others.
    """
    whole, problems = [], []
    with (
        ThreadPoolExecutor(max(nj, CHECK_THREADS)) as pool,
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
) -> Iterator[tuple[str, list[str], dict[str, list[str]], dict[str, list[str]]]]:
    """Yield each directory, its transcripts, its audio and other files by stem."""

    def unreadable(error: OSError) -> None:
        problems.append(Problem(error.filename, f"unreadable: {error.strerror}"))

    # Links may lead back to where they are.
    seen = set(map(str, Path(os.path.realpath(subset_dir)).parents))
    for directory, subdirs, files in os.walk(
        subset_dir, onerror=unreadable, followlinks=True
    ):
        real = os.path.realpath(directory)
        # Hidden are what systems and programs keep for themselves, as macOS its ._*.
        subdirs[:] = sorted(d for d in subdirs if real not in seen and d[0] != ".")
        if real in seen:
            continue
        seen.add(real)
        transcripts = []
        audio, others = defaultdict(list), defaultdict(list)
        for file in sorted(file for file in files if file[0] != "."):
            path = os.path.join(directory, file)
            stem, suffix = os.path.splitext(file)
            stem = _one_spelling(stem)
            if file.lower().endswith(TRANSCRIPT_SUFFIX):
                transcripts.append(path)
            elif suffix.lower() in AUDIO_SUFFIXES:
                audio[stem].append(path)
            else:
                others[stem].append(file)
        if transcripts or audio:
            yield directory, transcripts, audio, others


def _one_spelling(name: str) -> str:
    """Return a name as it is on all systems: macOS takes accents off their letters."""
    return unicodedata.normalize("NFC", name)


def _read(path: str, problems: list[Problem]) -> bytes | None:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        problems.append(Problem(path, f"unreadable: {error.strerror}"))
        return None
    if b"\0" in content:
        problems.append(
            Problem(path, "not UTF-8 but UTF-16, or no text: iconv -f UTF-16 -t UTF-8")
        )
        return None
    return content


def _transcript_lines(
    contents: Mapping[str, bytes | None], problems: list[Problem]
) -> Iterator[tuple[str, str, str | None]]:
    """Yield FILE:LINE, the utterance's name and its text (None: not decodable)."""
    for path, content in contents.items():
        for number, line in enumerate((content or b"").splitlines(), 1):
            where = f"{path}:{number}"
            try:
                # A byte order mark may be at the start of files, also of joined ones.
                # Unicode's spaces too, which ESPnet would strip off its token list.
                words = line.decode("utf-8-sig").split()
            except UnicodeDecodeError as error:
                problems.append(Problem(where, f"not UTF-8: {error}"))
                for utt_id in line.split()[:1]:
                    yield where, utt_id.decode(errors="replace"), None
                continue
            if words:
                yield where, _one_spelling(words[0]), " ".join(words[1:])


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
    with open(utterance.audio, "rb") as file:
        missing = missing_bytes(file)
    if missing:
        raise ValueError(
            f"ends early: {missing:,} bytes that its header promises are missing"
        )
    with soundfile.SoundFile(utterance.audio) as audio:
        if audio.samplerate != SAMPLE_RATE:
            raise ValueError(
                f"sample rate {audio.samplerate} Hz, should be {SAMPLE_RATE} Hz"
            )
        if audio.channels != 1:
            raise ValueError(f"{audio.channels} channels, should be 1")
        if not audio.frames:
            raise ValueError("0 samples")
        if audio.frames == UNKNOWN_LENGTH:
            raise ValueError("its header does not tell its length: encode it again")
        if audio.frames > MAX_SECONDS * SAMPLE_RATE:
            raise ValueError(
                f"{audio.frames} samples, should be {MAX_SECONDS} s or less: cut it up"
            )
        # The header of a file that breaks off, or in the middle, is whole.
        speech = audio.read(dtype="float32")
        if len(speech) != audio.frames:
            raise ValueError(
                f"ends early: {len(speech)} samples where its header says "
                f"{audio.frames}"
            )
        if not np.isfinite(speech).all():
            raise ValueError("has infinite samples, or some that are no number")
        return audio.frames
