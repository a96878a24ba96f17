"""Long recordings, made of a test subset's utterances."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path

import soundfile
import yaml

from benchmarks.corpus import SILENCE, Utterance, draw, join
from benchmarks.models import SAMPLE_RATE
from espnet_fastformer.inference.audio import duration

from .recipe import MAX_SECONDS

SPEAKER_CHAPTER = "joined-0"


def joined_name(subset: str, seconds: float) -> str:
    """Name a subset of long recordings."""
    return f"{subset}-{seconds:g}s"


def find_joined(directory: Path, subset: str) -> list[str]:
    """Name the long recordings of a subset that there are, the shorter ones first."""
    pattern = re.compile(rf"{re.escape(subset)}-([\d.e+]+)s")
    found = filter(None, (pattern.fullmatch(path.name) for path in directory.glob("*")))
    return [match[0] for match in sorted(found, key=lambda match: float(match[1]))]


def write_decodings(
    search: Path, windows: Sequence[float], directory: Path
) -> list[Path]:
    """Write the decoding configs for long recordings.

    Args:
        search: Decoding config for short ones.
        windows: Seconds that the encoder sees at once, beside all.
        directory: Where the configs are written.

    Returns:
        Their paths, which name the directories of transcripts.
    """
    name = _decoding_name(search.stem)
    # Long recordings fill the memory one by one.
    options = yaml.safe_load(search.read_text(encoding="utf-8")) or {}
    whole = {**options, "batch_size": 1}
    configs = {name: whole}
    for window in windows:
        configs[f"{name}-windows_{window:g}s"] = {**whole, "pooling_window": window}
    paths = []
    for name, config in configs.items():
        paths.append(directory / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(config), encoding="utf-8")
    return paths


def find_decodings(directory: Path, search: str) -> dict[str, str]:
    """Return what a table says after a subset's name, by the names of decodings.

    Args:
        directory: Where :func:`write_decodings` wrote the configs.
        search: Name of the one for short recordings.
    """
    ends = {}
    for path in directory.glob(f"{_decoding_name(search)}*.yaml"):
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        ends[path.stem] = config.get("pooling_window", 0)
    return {
        name: f", windows of {window:g} s" if window else ""
        for name, window in sorted(ends.items(), key=lambda item: item[1])
    }


def _decoding_name(search: str) -> str:
    return f"{search}-joined"


def join_subset(
    texts: Mapping[Path, str],
    subset: str,
    seconds: float,
    directory: Path,
    seed: int = 0,
) -> None:
    """Join all utterances of a subset into recordings in LibriSpeech's layout.

    Each utterance comes once, in random order, so that the error rate of the recordings
    is one of the same words. Nothing is done if the recordings are there.

    Args:
        texts: What is said in each audio file that the recipe found whole.
        subset: Name of the subset.
        seconds: Least length of a recording, but for the last.
        directory: Where a new subset :func:`joined_name` is written.
        seed: Of order and silences.

    Raises:
        ValueError: A recording would be longer than the recipe takes.
    """
    target = directory / joined_name(subset, seconds)
    if target.is_dir():
        return
    # All of them come before any comes again.
    drawn = list(islice(draw(texts, math.inf, SILENCE, seed), len(texts)))
    groups = _group(drawn, seconds)
    longest = max(sum(duration(u.audio) + u.silence for u in group) for group in groups)
    if longest > MAX_SECONDS:
        raise ValueError(
            f"--joined_seconds {seconds:g} makes a recording of {longest:.0f} s of "
            f"{subset}; the recipe takes {MAX_SECONDS} s at most: give less"
        )
    partial = directory / f"{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    chapter = partial.joinpath(*SPEAKER_CHAPTER.split("-"))
    chapter.mkdir(parents=True)
    lines = []
    for number, group in enumerate(groups):
        utt_id = f"{SPEAKER_CHAPTER}-{number:04}"
        samples = join(group, SAMPLE_RATE)
        soundfile.write(chapter / f"{utt_id}.flac", samples, SAMPLE_RATE)
        lines.append(f"{utt_id} {' '.join(u.text for u in group)}\n")
    transcript = chapter / f"{SPEAKER_CHAPTER}.trans.txt"
    transcript.write_text("".join(lines), encoding="utf-8")
    partial.rename(target)


def _group(utterances: list[Utterance], seconds: float) -> list[list[Utterance]]:
    ends, length = [0], 0.0
    for number, utterance in enumerate(utterances, start=1):
        length += duration(utterance.audio) + utterance.silence
        if length >= seconds or number == len(utterances):
            ends.append(number)
            length = 0.0
    return [utterances[start:end] for start, end in pairwise(ends)]
