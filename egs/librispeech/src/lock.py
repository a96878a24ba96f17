"""The right to write in the directory of an experiment, which one run has at a time.

ESPnet3 has two runs write over each other's files.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock(exp_dir: Path) -> None:
    """Keep other runs from an experiment until the process ends.

    Args:
        exp_dir: Directory of the experiment, made if it is not there.

    Raises:
        ValueError: One is at work in it.
    """
    exp_dir.mkdir(parents=True, exist_ok=True)
    # Unlike those of flock, what is forked, and may outlive a kill, does not hold it.
    file = os.open(exp_dir / ".running", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"{exp_dir} is in use by another run: wait for it, or give another "
            "--exp_tag or --exp_dir"
        ) from None
