"""Errors of every utterance, and what they say of two encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jiwer
import numpy as np
from scipy.stats import bootstrap

CONFIDENCE = 0.95
RESAMPLES = 10_000
# Resamples at once, for the sake of memory.
BATCH = 500


@dataclass(frozen=True)
class Errors:
    """Errors of N utterances, in the order of their names.

    Attributes:
        utt_ids: Their names.
        cer: Wrong characters (N,); a space is a character, as in ESPnet.
        characters: Characters of the references (N,).
        wer: Wrong words (N,).
        words: Words of the references (N,).
    """

    utt_ids: Sequence[Any]
    cer: np.ndarray
    characters: np.ndarray
    wer: np.ndarray
    words: np.ndarray

    @property
    def character_error_rate(self) -> float:
        """Percentage of wrong characters."""
        return 100 * self.cer.sum() / self.characters.sum()

    @property
    def word_error_rate(self) -> float:
        """Percentage of wrong words."""
        return 100 * self.wer.sum() / self.words.sum()


@dataclass(frozen=True)
class Difference:
    """Difference of two error rates in percentage points, with its interval.

    A single utterance has no interval.
    """

    value: float
    low: float | None
    high: float | None


def count_errors(
    references: Mapping[Any, str], hypotheses: Mapping[Any, str]
) -> Errors:
    """Count the errors of a decoded subset.

    Args:
        references: What is said, by the names of the utterances.
        hypotheses: What was decoded.

    Raises:
        ValueError: The two are of different utterances.
    """
    if hypotheses.keys() != references.keys():
        raise ValueError("not all utterances are decoded")
    utt_ids = sorted(references)
    pairs = [(references[utt_id], hypotheses[utt_id]) for utt_id in utt_ids]
    characters = [_count(jiwer.process_characters, pair) for pair in pairs]
    words = [_count(jiwer.process_words, pair) for pair in pairs]
    return Errors(
        utt_ids,
        *np.array(characters, dtype=float).T,
        *np.array(words, dtype=float).T,
    )


def average(errors: Sequence[Errors]) -> Errors:
    """Average the errors of trainings that differ in their seed.

    Raises:
        ValueError: They are of different utterances.
    """
    first = errors[0]
    if any(list(other.utt_ids) != list(first.utt_ids) for other in errors):
        raise ValueError("the seeds of a row are decoded on different utterances")
    return Errors(
        first.utt_ids,
        np.mean([e.cer for e in errors], axis=0),
        first.characters,
        np.mean([e.wer for e in errors], axis=0),
        first.words,
    )


def compare(errors: Errors, reference: Errors, seed: int = 0) -> Difference:
    """Compare two character error rates by a paired bootstrap over utterances.

    Every resample draws utterances, with the errors of both encoders in them.

    Args:
        errors: Of one encoder.
        reference: Of the other, in the same utterances.
        seed: Of the resamples.

    Returns:
        The error rate less the reference's, and the percentile interval of 95 %.

    Raises:
        ValueError: They are of different utterances.
    """
    if list(errors.utt_ids) != list(reference.utt_ids):
        raise ValueError("two rows are decoded on different utterances")

    def difference(own, other, characters, axis):
        return 100 * (own - other).sum(axis) / characters.sum(axis)

    data = (errors.cer, reference.cer, reference.characters)
    value = float(difference(*data, axis=0))
    if len(errors.utt_ids) < 2:
        return Difference(value, None, None)
    interval = bootstrap(
        data,
        difference,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=BATCH,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Difference(value, float(interval.low), float(interval.high))


def _count(process: Callable, pair: tuple[str, str]) -> tuple[int, int]:
    """Return errors and units of the reference, an empty text counting as a dot."""
    out = process(*(text or "." for text in pair))
    units = out.hits + out.substitutions + out.deletions
    return units - out.hits + out.insertions, units
