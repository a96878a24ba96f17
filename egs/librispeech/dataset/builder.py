"""The work of the ``create_dataset`` stage.

ESPnet3 calls the builder of a recipe, and has none that checks a corpus.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.data.dataset_builder import DatasetBuilder

from .corpus import CorpusError, Problem, list_subsets, resolve_corpus
from .manifest import Manifest
from .mini import MiniLibriSpeech
from .small import SmallCorpus
from .synthetic import SyntheticCorpus

logger = logging.getLogger(__name__)

# Corpora that the recipe makes: splits names their train, valid and test subsets.
CORPORA = {
    "synthetic": SyntheticCorpus,
    "mini": MiniLibriSpeech,
    "small": SmallCorpus,
}

MAX_LISTED = 20


def open_manifest(split: str, source_dir: str | Path, data_dir: str | Path) -> Manifest:
    """Return the manifest of one subset, prepared or not.

    Raises:
        FileNotFoundError: ``source_dir`` does not exist.
        CorpusError: It has no such subset.
    """
    corpus = resolve_corpus(source_dir)
    if not (corpus / split).is_dir():
        known = ", ".join(list_subsets(corpus)) or "none"
        raise CorpusError(f"No subset {split!r} in {corpus}. Subsets there: {known}")
    return Manifest(data_dir, corpus / split)


class LibriSpeechBuilder(DatasetBuilder):
    """Make or find a corpus in LibriSpeech's layout and check every file of it.

    All methods take what the config has under ``create_dataset``:

    - ``source_dir``: root of the corpus, made there if the recipe makes it.
    - ``data_dir``: where the manifests of what was checked are kept.
    - ``splits``: names of the subsets that will be used.
    - ``corpus``, ``corpus_conf``: name in ``CORPORA`` and options of a corpus that
      the recipe makes; None for one that is there already.
    - ``skip_broken_utterances``: go on with what is whole in a corpus that has
      something wrong, and log what is left out.
    - ``nj``: files that are decoded at the same time, if more than usual.
    - ``min_samples``: samples that an utterance needs for the encoder to give a frame.
    - ``func``, ``dataset_dir`` come with ESPnet3's default config and are not used.
    """

    def is_source_prepared(
        self,
        source_dir: str | Path,
        corpus: str | None = None,
        corpus_conf: Mapping[str, Any] | None = None,
        **_build_options,
    ) -> bool:
        """Tell whether the corpus has been made; True if it is the user's own."""
        if corpus is None:
            return True
        return CORPORA[corpus](source_dir, **(corpus_conf or {})).is_prepared()

    def prepare_source(
        self,
        source_dir: str | Path,
        corpus: str | None = None,
        corpus_conf: Mapping[str, Any] | None = None,
        **_build_options,
    ) -> None:
        """Make or download the corpus, going on from where it was interrupted."""
        if corpus is not None:
            CORPORA[corpus](source_dir, **(corpus_conf or {})).prepare()

    def is_built(
        self,
        source_dir: str | Path,
        data_dir: str | Path,
        splits: Sequence[str],
        min_samples: int = 1,
        **_source_options,
    ) -> bool:
        """Tell whether every subset has been checked and no file changed since."""
        try:
            return all(
                open_manifest(split, source_dir, data_dir).is_current(min_samples)
                for split in splits
            )
        except CorpusError:
            return False

    def build(
        self,
        source_dir: str | Path,
        data_dir: str | Path,
        splits: Sequence[str],
        skip_broken_utterances: bool = False,
        nj: int = 1,
        min_samples: int = 1,
        corpus: str | None = None,
        corpus_conf: Mapping[str, Any] | None = None,
        func: str | None = None,
        dataset_dir: str | Path | None = None,
    ) -> None:
        """Check every subset and write its manifest.

        Raises:
            FileNotFoundError: ``source_dir`` does not exist.
            CorpusError: A subset is missing or has nothing whole in it, or anything
                is wrong and ``skip_broken_utterances`` is off. The message names the
                first files and lines, and a file that names all.
        """
        checked, missing, problems = [], [], []
        for split in dict.fromkeys(splits):
            try:
                manifest = open_manifest(split, source_dir, data_dir)
            except CorpusError as error:
                missing.append(str(error))
                continue
            utterances, found = manifest.update(min_samples, nj)
            if not utterances:
                missing.append(f"Nothing to use in {manifest.subset_dir}")
            checked.append((manifest, utterances, found))
            problems += found
        listing = _list_problems(problems, Path(data_dir) / "corpus_problems.txt")

        usable = not missing and (skip_broken_utterances or not problems)
        for manifest, utterances, found in checked:
            if usable or (utterances and not found):
                manifest.accept(utterances)
            else:
                manifest.reject(utterances)
        if not usable:
            if problems and not skip_broken_utterances:
                listing += (
                    "\nCorrect these files, or set skip_broken_utterances to use the "
                    "corpus without them."
                )
            raise CorpusError("\n".join(filter(None, [*missing, listing])))
        if listing:
            logger.warning("Left out, as skip_broken_utterances asks: %s", listing)


def _list_problems(problems: list[Problem], file: Path) -> str:
    """Write all problems to ``file`` and return their number and the first of them."""
    if not problems:
        file.unlink(missing_ok=True)
        return ""
    lines = [f"{problem}\n" for problem in problems]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(lines), encoding="utf-8")
    first = "".join(f"  {line}" for line in lines[:MAX_LISTED])
    more = len(lines) - MAX_LISTED
    rest = f"  and {more} more\n" if more > 0 else ""
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    return f"{count} in the corpus:\n{first}{rest}All are in {file}."
