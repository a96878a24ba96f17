"""Word and character error rates with all the columns of ESPnet's RESULTS.md.

ESPnet3 counts them, and gives the rates alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from espnet3.contract import Field
from espnet3.systems.esp2_asr.metrics import cer, wer

COLUMNS = ("Snt", "Wrd", "Corr", "Sub", "Del", "Ins", "Err", "SErr")


def columns(rate: str) -> dict[str, str]:
    """Map each column to its key in ``metrics.json``, such as ``WER_Sub``."""
    return {column: f"{rate}_{column}" for column in COLUMNS}


class _AllColumns:
    """Extend ESPnet3's metric from the one rate to the counts behind it.

    ``Snt`` and ``Wrd`` count the sentences and the words (or characters) of the
    references; the others are percentages of the words or, ``SErr``, of the sentences.
    """

    def __init__(self, clean_types: Sequence[str] | None = None) -> None:
        super().__init__(clean_types)
        self.add_state("sentences", 0, "sum")
        self.add_state("wrong_sentences", 0, "sum")

    def update(self, *, ref: Sequence[str], hyp: Sequence[str]) -> None:
        """Add the errors of one batch of texts."""
        super().update(ref=ref, hyp=hyp)
        self.sentences += len(ref)
        self.wrong_sentences += sum(
            self._clean(r).split() != self._clean(h).split()
            for r, h in zip(ref, hyp, strict=True)
        )

    def compute(self) -> dict[str, float]:
        """Return all columns, the percentages with one decimal."""
        words = self.hits + self.substitutions + self.deletions
        counts = {
            "Corr": self.hits,
            "Sub": self.substitutions,
            "Del": self.deletions,
            "Ins": self.insertions,
            "Err": self.substitutions + self.deletions + self.insertions,
        }
        values = {
            "Snt": self.sentences,
            "Wrd": words,
            **{column: round(100 * n / words, 1) for column, n in counts.items()},
            "SErr": round(100 * self.wrong_sentences / self.sentences, 1),
        }
        keys = columns(type(self).__name__)
        return {keys[column]: value for column, value in values.items()}


class WER(_AllColumns, wer.WER):
    """Word error rate."""

    outputs = tuple(Field(key, "number") for key in columns("WER").values())


class CER(_AllColumns, cer.CER):
    """Character error rate; spaces count as characters, as in ESPnet."""

    outputs = tuple(Field(key, "number") for key in columns("CER").values())
