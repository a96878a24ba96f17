"""What the trainings of a study left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.measure import Result
from benchmarks.scores import Difference, Errors, average, compare, count_errors

from .recipe import read_scalars

CONFIG = "train.yaml"
SPEED = "speed.json"
# Said by each decoding for itself: where one fails, another may not.
FAILURE = "failed_{}.txt"
VALID_CER = "valid/cer_ctc"


@dataclass(frozen=True)
class Training:
    """One training of a row.

    Attributes:
        directory: Experiment of run.py.
        errors: Errors by the name of the test subset.
        failure: Why it failed, or None.
    """

    directory: Path
    errors: Mapping[str, Errors]
    failure: str | None

    @cached_property
    def curve(self) -> dict[int, float]:
        """Character error rate of the validation set (%), by update."""
        scalars = read_scalars(self.directory / "tensorboard").get(VALID_CER, {})
        return {step: 100 * value for step, value in scalars.items()}


@dataclass(frozen=True)
class Speed:
    """Time and memory of a row.

    Attributes:
        device: ``cpu`` or ``cuda``.
        threads: Threads of a CPU computation.
        results: An update, and the encoder at each length.
    """

    device: str
    threads: int
    results: list[Result]


@dataclass(frozen=True)
class RowResult:
    """All trainings of a row.

    Attributes:
        name: Name of the row.
        parameters: Number of parameters.
        config: ESPnet2 training config.
        trainings: Trainings by their seeds.
        speed: An update, and the encoder at each length; empty if not measured.
        threads: What that was measured with.
    """

    name: str
    parameters: int
    config: Mapping[str, Any]
    trainings: Mapping[int, Training]
    speed: Sequence[Result]
    threads: int | None = None

    @property
    def updates(self) -> int:
        """Number of updates of a whole training."""
        return count_updates(self.config)

    @property
    def update(self) -> Result | None:
        """Time and memory of an update."""
        return self.speed[0] if self.speed else None

    @property
    def failures(self) -> dict[int, str]:
        """Why trainings failed, by their seeds."""
        return {s: t.failure for s, t in self.trainings.items() if t.failure}

    def errors(self, subset: str, seeds: Sequence[int] | None = None) -> Errors | None:
        """Return the errors in a subset, averaged over seeds (default: all)."""
        found = [
            self.trainings[seed].errors[subset]
            for seed in (self.seeds(subset) if seeds is None else seeds)
        ]
        return average(found) if found else None

    def seeds(self, subset: str) -> list[int]:
        """Return the seeds whose trainings are decoded on a subset."""
        return sorted(s for s, t in self.trainings.items() if subset in t.errors)

    def against(self, reference: RowResult, subset: str) -> Difference | None:
        """Compare with the reference by the seeds that both have."""
        seeds = sorted({*self.seeds(subset)} & {*reference.seeds(subset)})
        if self.name == reference.name or not seeds:
            return None
        return compare(self.errors(subset, seeds), reference.errors(subset, seeds))

    def curve(self) -> dict[int, float]:
        """Return the learning curve, averaged over seeds as far as all have it.

        One that is still being learnt would cut off the others.
        """
        trainings = self.trainings.values()
        finished = [t for t in trainings if t.errors] or trainings
        curves = [t.curve for t in finished if t.curve]
        if not curves:
            return {}
        common = sorted(set(curves[0]).intersection(*curves[1:]))
        return {step: float(np.mean([c[step] for c in curves])) for step in common}


def count_updates(config: Mapping[str, Any]) -> int:
    """Return the number of updates that a config asks for."""
    batches = config["max_epoch"] * config["num_iters_per_epoch"]
    return batches // config.get("accum_grad", 1)


def has_scores(directory: Path, decoding: str, subsets: Sequence[str]) -> bool:
    """Tell whether an experiment is decoded and scored on all of these subsets."""
    path = directory / decoding / "metrics.json"
    if not path.is_file():
        return False
    scored = json.loads(path.read_text(encoding="utf-8"))
    return all(set(subsets) <= rates.keys() for rates in scored.values())


def read_errors(directory: Path) -> Errors:
    """Count the errors of a decoded subset.

    Args:
        directory: With ``text.scp``, and the references in ``dataset/text.scp``.

    Raises:
        ValueError: The two are of different utterances.
        OSError: One is not there.
    """
    texts = [_read_texts(directory / name) for name in ("dataset/text.scp", "text.scp")]
    try:
        return count_errors(*texts)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error


def read_row(
    directory: Path, parameters: int, decoded: Mapping[str, tuple[str, str]]
) -> RowResult:
    """Read all of a row.

    Args:
        directory: Directory of the row.
        parameters: Its number of parameters.
        decoded: Name of the directory with transcripts, and the subset in it, by what
            the tables call them.
    """
    trainings = {}
    for path in sorted(directory.glob("seed*/")):
        failures = [
            file.read_text(encoding="utf-8")
            for file in sorted(path.glob(FAILURE.format("*")))
        ]
        errors = {
            name: read_errors(path / decoding / subset)
            for name, (decoding, subset) in decoded.items()
            if has_scores(path, decoding, [subset])
        }
        trainings[int(path.name.removeprefix("seed"))] = Training(
            path,
            errors,
            "; ".join(failures) or None,
        )
    speed = read_speed(directory)
    return RowResult(
        directory.name,
        parameters,
        yaml.safe_load((directory / CONFIG).read_text(encoding="utf-8")),
        trainings,
        speed.results if speed else [],
        speed.threads if speed else None,
    )


def read_speed(directory: Path) -> Speed | None:
    """Read what was measured of a row, if anything was."""
    path = directory / SPEED
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    content["results"] = [Result(**result) for result in content["results"]]
    return Speed(**content)


def write_speed(directory: Path, speed: Speed) -> None:
    """Write what was measured of a row."""
    content = json.dumps(asdict(speed), indent=1)
    (directory / SPEED).write_text(f"{content}\n", encoding="utf-8")


def _read_texts(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    texts = (line.partition(" ") for line in lines if line)
    return {utt_id: text.strip() for utt_id, _, text in texts}
