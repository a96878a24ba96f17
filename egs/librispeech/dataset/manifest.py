"""The list of a subset's checked utterances, kept on disk between runs.

ESPnet3 keeps no such list. Decoding every audio file of a large corpus takes minutes;
reading its transcripts and the size and time of its files takes seconds. So the
manifest remembers which files were whole, and only new or changed ones are decoded
again.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

from .corpus import Problem, Utterance, check_audio, read_transcripts

# Earlier versions, which did not decode the audio, called the last one num_samples.
HEADER = (*Utterance._fields[:-1], "decoded_samples")


class TSV(csv.excel_tab):
    """Tab-separated; a path with a tab, a line break or a quote in it is quoted."""

    lineterminator = "\n"


class Manifest:
    """One TSV file for one subset of one corpus.

    Args:
        data_dir: Directory of the recipe's prepared data.
        subset_dir: Directory of the subset.
    """

    def __init__(self, data_dir: str | Path, subset_dir: Path) -> None:
        self.subset_dir = subset_dir
        self.path = Path(data_dir) / "manifest" / f"{subset_dir.name}.tsv"
        # Checked, but something is wrong with the corpus and nobody has accepted it.
        self.rejected_path = self.path.with_suffix(".rejected.tsv")

    def read(self) -> list[Utterance]:
        """Return the utterances to train or test on; empty if not prepared."""
        return self._read(self.path)

    def is_current(self, min_samples: int = 1) -> bool:
        """Tell whether the manifest lists exactly what the corpus now holds.

        Args:
            min_samples: As of :meth:`update`.
        """
        found, problems = read_transcripts(self.subset_dir)
        known = self.read()
        return (
            not problems
            and all(utterance.num_samples >= min_samples for utterance in known)
            and [utterance._replace(num_samples=0) for utterance in known] == found
        )

    def update(
        self, min_samples: int = 1, nj: int = 1
    ) -> tuple[list[Utterance], list[Problem]]:
        """Read the subset, decoding the audio that is new or has changed.

        Args:
            min_samples: Samples that an utterance needs.
            nj: As of :func:`~.corpus.check_audio`.

        Returns:
            The whole utterances, to be given to :meth:`accept` or :meth:`reject`,
            and everything that is wrong with the others.
        """
        found, problems = read_transcripts(self.subset_dir)
        num_samples = {
            (known.audio, known.size, known.mtime_ns): known.num_samples
            for known in self._read(self.rejected_path) + self._read(self.path)
        }
        utterances = [
            utterance._replace(
                num_samples=num_samples.get(
                    (utterance.audio, utterance.size, utterance.mtime_ns), 0
                )
            )
            for utterance in found
        ]
        unchecked = [utterance for utterance in utterances if not utterance.num_samples]
        whole, broken = check_audio(unchecked, f"check {self.subset_dir.name}", nj)
        checked = {utterance.utt_id: utterance for utterance in whole}
        utterances = [
            checked.get(utterance.utt_id, utterance) for utterance in utterances
        ]
        for utterance in utterances:
            if 0 < utterance.num_samples < min_samples:
                what = (
                    f"{utterance.num_samples} samples, should be {min_samples} or more"
                )
                broken.append(Problem(utterance.audio, what))
        whole = [u for u in utterances if u.num_samples >= min_samples]
        return whole, problems + broken

    def accept(self, utterances: list[Utterance]) -> None:
        """Make these the utterances that :meth:`read` returns."""
        self._write(self.path, utterances)
        self.rejected_path.unlink(missing_ok=True)

    def reject(self, utterances: list[Utterance]) -> None:
        """Remember that these are whole, but let :meth:`read` return nothing."""
        self._write(self.rejected_path, utterances)
        self.path.unlink(missing_ok=True)

    def _read(self, path: Path) -> list[Utterance]:
        if not path.is_file():
            return []
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file, TSV)
            if tuple(next(rows, ())) != HEADER:
                return []
            utterances = [
                Utterance(utt_id, audio, text, *map(int, numbers))
                for utt_id, audio, text, *numbers in rows
            ]
        # Another corpus may have a subset of the same name.
        if utterances and utterances[0].audio.startswith(f"{self.subset_dir}{os.sep}"):
            return utterances
        return []

    def _write(self, path: Path, utterances: list[Utterance]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        with partial.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, TSV).writerows([HEADER, *utterances])
        os.replace(partial, path)
