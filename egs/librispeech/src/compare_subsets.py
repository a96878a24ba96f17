"""What would make error rates say little, found by comparing subsets of a corpus.

ESPnet trains and tests on whatever it is given.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_NAMED = 5


def compare_subsets(
    train: Iterable[Any], others: Mapping[str, Iterable[Any]]
) -> Iterator[str]:
    """Yield a warning for each subset that is no fair test of what was trained.

    Args:
        train: Utterances of all training subsets, as ``dataset`` has them.
        others: Those of the other subsets, by name.
    """
    letters = _letters(train)
    for subset, utterances in others.items():
        found = _letters(utterances)
        unknown = {letter: n for letter, n in found.items() if letter not in letters}
        if unknown:
            share = sum(unknown.values()) / found.total()
            yield (
                f"{subset}: {share:.1%} of the letters of its transcripts are in no "
                f"training transcript and cannot be recognised: {_first(unknown)}. "
                "Write all transcripts alike, such as in upper case"
            )
        heard = _recordings_of_both(train, utterances)
        if heard:
            yield (
                f"{subset}: {len(heard)} of its {len(utterances)} utterances are in "
                f"the training subsets too: {_first(heard)}. Its error rates are not "
                "those of speech that is new to the model: leave them out of one"
            )


def _letters(utterances: Iterable[Any]) -> Counter[str]:
    letters = Counter()
    for utterance in utterances:
        letters.update(utterance.text)
    del letters[" "]
    return letters


def _recordings_of_both(ones: Iterable[Any], others: Iterable[Any]) -> list[str]:
    """Return the names of ``others`` with the transcript and the bytes of one of ones.

    Names would not do: many corpora count anew in each subset.
    """
    alike = set(map(_alike, ones)) & set(map(_alike, others))
    known = {_contents(one) for one in ones if _alike(one) in alike}
    return [
        other.utt_id
        for other in others
        if _alike(other) in alike and _contents(other) in known
    ]


def _alike(utterance: Any) -> tuple[str, int, int]:
    return utterance.text, utterance.num_samples, utterance.size


def _contents(utterance: Any) -> bytes:
    with open(utterance.audio, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _first(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - MAX_NAMED
    rest = f" and {more} more" if more > 0 else ""
    return ", ".join(names[:MAX_NAMED]) + rest
