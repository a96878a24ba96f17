"""Utterances of a corpus in LibriSpeech's layout, transcribed one by one or joined."""

import argparse
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.command import new_parser
from espnet_fastformer.inference.audio import duration, read_audio
from espnet_fastformer.inference.transcriber import Transcriber

# Least and most seconds of silence between two utterances.
SILENCE = (0.2, 0.8)


class Utterance(NamedTuple):
    """A recording, what is said in it, and the seconds of silence after it."""

    audio: Path
    text: str
    silence: float


def get_parser(description: str, name: str) -> argparse.ArgumentParser:
    """Return a parser of what all commands about error rates need.

    Args:
        description: Docstring of the command.
        name: Its name, and that of the files it writes.
    """
    parser = new_parser(description, name)
    parser.add_argument(
        "--corpus", type=Path, required=True, help="directory of the subsets"
    )
    parser.add_argument("--subsets", nargs="+", required=True, metavar="SUBSET")
    return parser


def read_corpus(corpus: Path, subsets: Sequence[str]) -> dict[Path, str]:
    """Return the transcript of each audio file.

    Args:
        corpus: Directory of the subsets.
        subsets: Names of directories with ``*.trans.txt`` beside the audio.

    Raises:
        ValueError: If a subset has no utterance.
    """
    texts = {}
    for subset in subsets:
        found = dict(_read_subset(corpus / subset))
        if not found:
            raise ValueError(f"{corpus / subset} has no utterance beside a *.trans.txt")
        texts |= found
    return texts


def _read_subset(directory: Path) -> Iterator[tuple[Path, str]]:
    for transcript in sorted(directory.rglob("*.trans.txt")):
        for line in transcript.read_text(encoding="utf-8").splitlines():
            utt_id, _, text = line.partition(" ")
            for audio in transcript.parent.glob(f"{utt_id}.*"):
                yield audio, text.strip()


def draw(
    texts: Mapping[Path, str],
    seconds: float,
    silence: tuple[float, float],
    seed: int,
) -> Iterator[Utterance]:
    """Draw utterances until their audio and the silences last long enough.

    All of them come, in random order, before any comes again.

    Args:
        texts: What is said in each audio file, of which there is at least one.
        seconds: How long.
        silence: Least and most seconds of silence after each.
        seed: Of order and silences.
    """
    generator = random.Random(seed)
    drawn: list[Path] = []
    while seconds > 0:
        if not drawn:
            drawn = generator.sample(sorted(texts), len(texts))
        audio = drawn.pop()
        utterance = Utterance(audio, texts[audio], generator.uniform(*silence))
        yield utterance
        seconds -= duration(audio) + utterance.silence


def join(utterances: Iterable[Utterance], fs: int) -> np.ndarray:
    """Return one recording (N,), float32, of rate ``fs``."""
    pieces = []
    for utterance in utterances:
        pieces.append(read_audio(utterance.audio, fs))
        pieces.append(np.zeros(round(utterance.silence * fs), dtype="float32"))
    return np.concatenate(pieces)


def transcribe(transcriber: Transcriber, audio: Iterable[Path]) -> dict[Path, str]:
    """Return the text of each audio file."""
    return {path: transcriber(read_audio(path, transcriber.fs)).text for path in audio}
