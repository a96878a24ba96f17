"""The recipe's run.py, where the encoder ``mixed`` is known: what a study runs.

A script, since whatever it starts, be it for another GPU, reads it by its path.
"""

import sys
from pathlib import Path

# Python puts the directory of a script there.
sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.study import interruption, run  # noqa: E402

if __name__ == "__main__":
    # Before PyTorch is imported, and has threads of its own.
    interruption.end_at_ctrl_c()

from benchmarks.study.mixed_encoder import register  # noqa: E402

# In workers, too.
register()

if __name__ == "__main__":
    run.main()
