"""Makes the recipe's modules importable as run.py and study.py import them."""

import sys

from ..conftest import RECIPE_DIR

sys.path.insert(0, str(RECIPE_DIR))
