"""Encoders of equal size, trained under equal conditions, scored and compared.

A study trains with the recipe, which is a program and no package. What is imported of
it is imported here, its command line, and in `recipe.py`, the rest.
"""

import sys
from pathlib import Path

RECIPE_DIR = Path(__file__).parents[2] / "egs" / "librispeech"
sys.path.insert(0, str(RECIPE_DIR))

import interruption  # noqa: E402
import run  # noqa: E402

__all__ = ["RECIPE_DIR", "interruption", "run"]
