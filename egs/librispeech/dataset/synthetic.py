"""A small corpus of synthetic speech, made offline.

ESPnet's corpora are downloads, or a handful of utterances.

One voice reads generated sentences. It turns into another speaker by reading
``1 / ratio`` times as fast and being played ``ratio`` times as fast, which moves pitch
and formants and keeps the tempo.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

import scipy.signal
import soundfile
from espnet3.components.data.dataset_module import load_dataset_module
from tqdm import tqdm
from typeguard import typechecked

from .corpus import SAMPLE_RATE
from .sentences import generate_sentences

logger = logging.getLogger(__name__)

RECIPE_DIR = Path(__file__).parents[1]
MAX_WORKERS = 8

# The ratio of each speaker, in percent. Those of dev and test are other voices within
# the range of train.
SPEAKERS = {
    "test-synthetic": {301: 85, 302: 100},
    "dev-synthetic": {201: 91, 202: 97},
    "train-synthetic": dict(
        enumerate((80, 82, 84, 86, 88, 90, 92, 94, 96, 99, 102, 105), start=101)
    ),
}
TEMPO_RANGE = (0.9, 1.1)
UTTERANCES_PER_CHAPTER = 50
# Measured over the default corpus.
SECONDS_PER_SENTENCE, SECONDS_PER_CHARACTER = 0.62, 0.055


class Reading(NamedTuple):
    """One utterance to be made: equal readings give equal audio."""

    audio: Path
    text: str
    ratio: int
    tempo: float
    noise_seed: int


class SyntheticCorpus:
    """Read speech in LibriSpeech's layout; train, dev and test share no sentence.

    Args:
        source_dir: Root of the corpus.
        train_hours: Training speech, within a few percent.
        dev_hours: Validation speech.
        test_hours: Test speech. Neither it nor the validation speech depends on
            ``train_hours``.
        seed: Equal seeds give equal corpora.
        n_workers: Processes that synthesize; by default one a core, up to
            ``MAX_WORKERS``.

    Raises:
        ValueError: A number of hours or processes is not above 0.
    """

    splits = {
        "train": ["train-synthetic"],
        "valid": ["dev-synthetic"],
        "test": ["test-synthetic"],
    }

    @typechecked
    def __init__(
        self,
        source_dir: str | Path,
        train_hours: float = 1.6,
        dev_hours: float = 0.09,
        test_hours: float = 0.12,
        seed: int = 0,
        n_workers: int | None = None,
    ) -> None:
        self.root = Path(source_dir)
        self.parameters = {
            "train_hours": train_hours,
            "dev_hours": dev_hours,
            "test_hours": test_hours,
            "seed": seed,
        }
        for name in ("train_hours", "dev_hours", "test_hours"):
            if not 0 < self.parameters[name] < inf:
                raise ValueError(f"{name} must be above 0: {self.parameters[name]}")
        if n_workers is not None and n_workers < 1:
            raise ValueError(f"n_workers must be above 0: {n_workers}")
        self.n_workers = n_workers or min(MAX_WORKERS, os.cpu_count() or 1)
        self._origin_file = self.root / "synthesis.json"
        self._speakers_file = self.root / "SPEAKERS.TXT"

    def is_prepared(self) -> bool:
        """Tell whether the corpus is there, made from the same arguments."""
        plan = self.plan()
        return (
            self._speakers_file.is_file()
            and self._stored_origin() == self._origin(plan)
            and all(
                reading.audio.is_file()
                for readings in plan.values()
                for reading in readings
            )
        )

    def prepare(self) -> None:
        """Make the corpus, or go on where an earlier call was interrupted.

        Raises:
            FileExistsError: ``source_dir`` holds another corpus.
            ModuleNotFoundError: The text-to-speech package is missing.
        """
        plan = self.plan()
        self._claim_root(self._origin(plan))
        for subset, readings in plan.items():
            logger.info("%s: %d sentences", subset, len(readings))
            _write_transcripts(readings)
        num_samples = self._synthesize(
            [reading for readings in plan.values() for reading in readings]
        )
        _write(self._speakers_file, _speaker_table(plan, num_samples))

    def plan(self) -> dict[str, list[Reading]]:
        """Return what is to be read, by subset."""
        taken: set[str] = set()
        return {subset: list(self._plan_subset(subset, taken)) for subset in SPEAKERS}

    def _plan_subset(self, subset: str, taken: set[str]) -> Iterator[Reading]:
        rng = random.Random(f"{self.parameters['seed']} {subset} reading")
        sentences = generate_sentences(f"{self.parameters['seed']} {subset}")
        hours = self.parameters[f"{subset.partition('-')[0]}_hours"]
        speakers = list(SPEAKERS[subset].items())
        seconds, count = 0.0, 0
        while seconds < hours * 3600:
            text = next(sentences)
            if text in taken:
                continue
            taken.add(text)
            turn, index = divmod(count, len(speakers))
            speaker, ratio = speakers[index]
            chapter, number = divmod(turn, UTTERANCES_PER_CHAPTER)
            audio = (
                self.root
                / subset
                / f"{speaker}"
                / f"{chapter}"
                / f"{speaker}-{chapter}-{number:04d}.flac"
            )
            tempo = rng.uniform(*TEMPO_RANGE)
            yield Reading(audio, text, ratio, tempo, rng.getrandbits(32))
            count += 1
            seconds += (
                SECONDS_PER_SENTENCE + SECONDS_PER_CHARACTER * len(text)
            ) / tempo

    def _origin(self, plan: dict[str, list[Reading]]) -> dict[str, Any]:
        """Return what the corpus is made from, another grammar or voices included."""
        digest = hashlib.sha256()
        for reading in (reading for readings in plan.values() for reading in readings):
            name = reading.audio.relative_to(self.root)
            digest.update(repr((name.as_posix(), *reading[1:])).encode())
        return {**self.parameters, "digest": digest.hexdigest()[:12]}

    def _stored_origin(self) -> dict[str, Any] | None:
        try:
            return json.loads(self._origin_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def _claim_root(self, origin: dict[str, Any]) -> None:
        stored = self._stored_origin()
        if stored is None and self.root.is_dir() and any(self.root.iterdir()):
            raise FileExistsError(
                f"{self.root} holds something other than a synthetic corpus: choose "
                "another source_dir."
            )
        if stored is not None and stored != origin:
            raise FileExistsError(
                f"{self.root} holds a synthetic corpus made from {stored}, not from "
                f"{origin}: remove it, or choose another source_dir."
            )
        self.root.mkdir(parents=True, exist_ok=True)
        _write(self._origin_file, json.dumps(origin) + "\n")

    def _synthesize(self, readings: list[Reading]) -> dict[Path, int]:
        """Make what is not there yet; return the number of samples of each file."""
        progress = tqdm(total=len(readings), desc="synthesize", unit="utterance")
        num_samples = {}
        with progress:
            for reading, samples in self._map(readings):
                num_samples[reading.audio] = samples
                progress.update()
        return num_samples

    def _map(self, readings: list[Reading]) -> Iterator[tuple[Reading, int]]:
        n_workers = min(self.n_workers, len(readings))
        if n_workers == 1:
            yield from zip(readings, map(synthesize, readings), strict=True)
            return
        with ProcessPoolExecutor(
            n_workers,
            # A fork would copy the locks of whatever threads are running.
            mp_context=multiprocessing.get_context("spawn"),
            # ESPnet3 makes up the name of this module, so a worker can import it only
            # after loading the package as ESPnet3 does.
            initializer=load_dataset_module,
            initargs=(None, RECIPE_DIR),
        ) as pool:
            chunksize = min(16, ceil(len(readings) / n_workers))
            results = pool.map(synthesize, readings, chunksize=chunksize)
            yield from zip(readings, results, strict=True)


def synthesize(reading: Reading) -> int:
    """Make one file unless it is there, and return its number of samples."""
    if reading.audio.is_file():
        return soundfile.info(reading.audio).frames
    voice = _voice()
    speech = voice(
        reading.text.lower(),
        speed=100 * reading.tempo / reading.ratio,
        seed=reading.noise_seed,
    )
    speech = scipy.signal.resample_poly(
        speech, 100 * SAMPLE_RATE, reading.ratio * voice.sample_rate
    )
    # An interrupted write must not leave anything that looks like a whole file.
    partial = reading.audio.with_suffix(".partial")
    soundfile.write(partial, speech, SAMPLE_RATE, subtype="PCM_16", format="FLAC")
    os.replace(partial, reading.audio)
    return len(speech)


@cache
def _voice():
    try:
        from hibari import Hibari
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "The synthetic corpus is read by hibari-tts: "
            "pip install 'espnet-fastformer[recipe]'"
        ) from error
    return Hibari()


def _write_transcripts(readings: list[Reading]) -> None:
    chapters: dict[Path, list[str]] = {}
    for reading in readings:
        line = f"{reading.audio.stem} {reading.text}\n"
        chapters.setdefault(reading.audio.parent, []).append(line)
    for chapter, lines in chapters.items():
        chapter.mkdir(parents=True, exist_ok=True)
        name = f"{chapter.parent.name}-{chapter.name}.trans.txt"
        _write(chapter / name, "".join(lines))


def _speaker_table(plan: dict[str, list[Reading]], num_samples: dict[Path, int]) -> str:
    lines = ["; ID | SEX | SUBSET | MINUTES | NAME"]
    for subset, readings in plan.items():
        samples: Counter[str] = Counter()
        for reading in readings:
            samples[reading.audio.parts[-3]] += num_samples[reading.audio]
        for speaker, ratio in SPEAKERS[subset].items():
            minutes = samples[str(speaker)] / SAMPLE_RATE / 60
            name = f"hibari, ratio {ratio} %"
            lines.append(f"{speaker} | F | {subset} | {minutes:.2f} | {name}")
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
