"""Time and memory of an update and of the encoder, rows taking turns."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.encoders import FRAMES_PER_SECOND, build_inputs
from benchmarks.measure import Case, Result, Settings, measure
from benchmarks.models import SAMPLE_RATE, build_batch, build_model

from .mixed_encoder import register

# In the processes that measure, too.
register()

# Seconds of one utterance that the encoder is timed on.
ENCODED_SECONDS = (15, 120)
# Rows that are in memory at the same time.
ROWS_AT_A_TIME = 10


@dataclass(frozen=True)
class Batch:
    """A batch of mean size.

    Attributes:
        utterances: Number of them.
        seconds: Seconds of each.
        tokens: Tokens of each.
    """

    utterances: int
    seconds: float
    tokens: int


def mean_batch(stats_dir: Path, batch_bins: int) -> Batch:
    """Make a batch of utterances of mean length.

    Args:
        stats_dir: What the stage ``collect_stats`` wrote.
        batch_bins: Samples and one-hot tokens in a batch.
    """
    directory = stats_dir / "train"
    samples = _mean_shape(directory / "speech_shape")[0]
    tokens, vocabulary = _mean_shape(directory / "token_shape")
    utterances = max(1, round(batch_bins / (samples + tokens * vocabulary)))
    return Batch(utterances, samples / SAMPLE_RATE, max(1, round(tokens)))


def measure_rows(
    rows: Mapping[str, argparse.Namespace],
    tokens: Sequence[str],
    batch: Batch,
    settings: Settings,
    dtype: str = "float32",
) -> dict[str, list[Result]]:
    """Measure an update of each row without its optimizer, and its encoder.

    Args:
        rows: ESPnet2's options by the names of rows.
        tokens: Names of the CTC's outputs.
        batch: What an update is of.
        settings: How to measure.
        dtype: Of autocast in an update.

    Returns:
        Results of each row: the update, and the encoder at each length.
    """
    results: dict[str, list[Result]] = {name: [] for name in rows}
    names = list(rows)
    for first in range(0, len(names), ROWS_AT_A_TIME):
        some = names[first : first + ROWS_AT_A_TIME]
        points = [[_update(name, rows[name], tokens, batch, dtype) for name in some]]
        points += [
            [_encoding(name, rows[name], tokens, seconds) for name in some]
            for seconds in ENCODED_SECONDS
        ]
        for cases in points:
            measured = measure(cases, settings, with_operations=False)
            for name, result in zip(some, measured, strict=True):
                results[name].append(result)
    return results


class Encoding(torch.nn.Module):
    """The encoder of a model, called with features (B, T, F) and lengths (B,)."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.ctc = model.ctc

    def forward(self, feats: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the output (B, T', D)."""
        output, *_ = self.encoder(feats, lengths, ctc=self.ctc)
        return output[0] if isinstance(output, tuple) else output


def _update(
    name: str,
    args: argparse.Namespace,
    tokens: Sequence[str],
    batch: Batch,
    dtype: str,
) -> Case:
    return Case(
        name,
        partial(build_model, args, tokens),
        partial(_speech_and_text, batch.tokens / batch.seconds, len(tokens)),
        batch.utterances,
        round(FRAMES_PER_SECOND * batch.seconds),
        batch.seconds,
        "training",
        dtype,
    )


def _encoding(
    name: str, args: argparse.Namespace, tokens: Sequence[str], seconds: float
) -> Case:
    frames = round(FRAMES_PER_SECOND * seconds)
    module = partial(_build_encoding, args, tokens)
    return Case(name, module, build_inputs, 1, frames, seconds)


def _build_encoding(args: argparse.Namespace, tokens: Sequence[str]) -> Encoding:
    return Encoding(build_model(args, tokens))


def _speech_and_text(
    tokens_per_second: float, vocabulary: int, batch: int, frames: int
) -> tuple[torch.Tensor, ...]:
    seconds = frames / FRAMES_PER_SECOND
    tokens = max(1, round(tokens_per_second * seconds))
    return build_batch(batch, seconds, tokens, vocabulary)


def _mean_shape(path: Path) -> list[float]:
    lines = path.read_text(encoding="utf-8").splitlines()
    shapes = [line.split()[1].split(",") for line in lines]
    return [statistics.mean(map(int, sizes)) for sizes in zip(*shapes, strict=True)]
