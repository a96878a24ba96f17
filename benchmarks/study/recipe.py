"""What a study imports of the recipe, beside its command line."""

from dataset.builder import open_manifest
from dataset.corpus import MAX_SECONDS, resolve_corpus
from src.espnet2_config import mixed_precision, parse_asr_config
from src.report import read_scalars

__all__ = [
    "MAX_SECONDS",
    "mixed_precision",
    "open_manifest",
    "parse_asr_config",
    "read_scalars",
    "resolve_corpus",
]
