"""What a run says, and how.

ESPnet3 shows all that its libraries log, and a traceback for every mistake.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from functools import partialmethod

import torch
from espnet3.components.callbacks import default_callbacks
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from tqdm import tqdm

# Their messages say what to do, without a traceback.
USER_ERRORS = (
    *(FloatingPointError, ImportError, MisconfigurationException, OSError, ValueError),
    torch.OutOfMemoryError,
)
# What ESPnet3 and Lightning say of progress; batches only where no bar shows them.
PROGRESS = re.compile(r"=== \[|epoch_summary:|Restored all states")
BATCHES = re.compile(r"\d+epoch:train:")
SECONDS_BETWEEN_LINES = 30


def set_up_console(is_first: bool) -> None:
    """Leave in sight what users need; ESPnet3 logs everything to files as well.

    Args:
        is_first: Whether this is the first of the processes, which speaks for all.
    """
    # Their own handlers would show all that they say.
    for name in ("lightning", "lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    console = _Console()
    console.setLevel(logging.INFO if is_first else logging.WARNING)
    console.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[console], force=True)
    default_callbacks.TQDMProgressBar = ProgressBar
    if not sys.stderr.isatty():
        tqdm.__init__ = partialmethod(
            tqdm.__init__, file=_Lines(), mininterval=SECONDS_BETWEEN_LINES
        )


def explain(error: BaseException) -> str | None:
    """Return what to say of an error in place of its traceback.

    Returns:
        The message of one of ``USER_ERRORS``, with what to do; None for others.
    """
    message = str(error).strip()
    if message.startswith("Caught "):
        # From a worker of a DataLoader, with its traceback.
        message = message.splitlines()[-1].partition(": ")[2]
    # ESPnet3 makes a RuntimeError of whatever the recipe's dataset raises.
    _, _, original = message.rpartition("Original error: ")
    if original.startswith("Cannot read "):
        return original
    if not isinstance(error, USER_ERRORS):
        return None
    if isinstance(error, torch.OutOfMemoryError):
        message += (
            "\nGive a lower --batch_bins or --batch_size, with a higher --accum_grad "
            "for updates as large as before; and another --exp_tag if there are "
            "checkpoints already"
        )
    return message


class ProgressBar(TQDMProgressBar):
    """Lightning's, on a terminal alone, with epochs counted from 1 as by ESPnet."""

    def __init__(self, refresh_rate: int) -> None:
        super().__init__(refresh_rate)
        if not sys.stderr.isatty():
            self.disable()

    def on_train_epoch_start(self, trainer: Trainer, *args) -> None:
        """Start the bar of an epoch."""
        self.train_progress_bar.reset(self.total_train_batches)
        epochs = f"{trainer.current_epoch + 1}/{trainer.max_epochs}"
        self.train_progress_bar.set_description(f"Epoch {epochs}")

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict:
        """Leave out the number of the run, which is TensorBoard's."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics


class _Console(logging.StreamHandler):
    """Write between progress bars, and warnings of others once."""

    def __init__(self) -> None:
        super().__init__()
        self.said = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if record.name.startswith("src."):
            return True
        if record.levelno <= logging.INFO:
            off_terminal = not sys.stderr.isatty()
            return bool(
                PROGRESS.match(message) or (off_terminal and BATCHES.match(message))
            )
        # ESPnet3 logs an error before it raises it.
        if record.name == "py.warnings" or record.exc_info or message in self.said:
            return False
        self.said.add(message)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class _Lines(io.TextIOBase):
    """Turn what bars draw over and over into lines, for files and pipes."""

    def isatty(self) -> bool:
        # Bars that are for terminals alone can be lines too.
        return True

    def write(self, text: str) -> int:
        line = text.replace("\x1b[A", "").strip()
        if line:
            print(line, file=sys.stderr, flush=True)
        return len(text)
