"""Text for the ``train_tokenizer`` stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from espnet3.components.data.dataset_module import load_dataset_module


def gather_training_text(
    recipe_dir: str | Path,
    source_dir: str | Path,
    data_dir: str | Path,
    splits: Sequence[str],
) -> list[str]:
    """Return the transcripts of the training subsets.

    Args:
        recipe_dir: Root of this recipe.
        source_dir: Root of the corpus.
        data_dir: Where ``create_dataset`` keeps what it prepared.
        splits: Names of the training subsets.

    Raises:
        CorpusError: A subset is missing or something is wrong in it.
    """
    dataset_module = load_dataset_module(recipe_dir=recipe_dir)
    return [
        utterance.text
        for split in splits
        for utterance in dataset_module.Dataset(
            split=split, source_dir=source_dir, data_dir=data_dir
        ).utterances
    ]
