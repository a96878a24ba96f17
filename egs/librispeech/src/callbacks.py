"""What is done where a training starts, is stopped and ends.

ESPnet3 averages without the last epoch, and leaves broken files where it is stopped.
"""

from __future__ import annotations

import logging
import shutil
import signal
from pathlib import Path

import interruption
from espnet3.components.callbacks.default_callbacks import AverageCheckpointsCallback
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

logger = logging.getLogger(__name__)

# Between the updates of a training and those of a schedule, of the former.
MAX_DIFFERENCE = 0.1


class CloseProgressBars(Callback):
    """Close the progress bars of a training that ends in an error.

    They are in what the traceback refers to. Python would close them at its very end,
    where their code is half gone: 3.13 crashes there, after the error was printed.
    """

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close those that are open."""
        callback = trainer.progress_bar_callback
        for bar in vars(callback).values() if callback is not None else ():
            if isinstance(bar, tqdm):
                bar.close()


class EndAtSigterm(Callback):
    """End all processes of a training at once when one of them gets SIGTERM.

    Lightning's handler waits for the other processes, for ever if they are in the
    middle of something else, and ends with the exit status of success. Checkpoints are
    whole at any time, so that there is nothing to wait for.
    """

    def on_sanity_check_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Take the place of the handler that Lightning has just set."""
        self._set_handler()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do so where there is no sanity check: a training that goes on."""
        self._set_handler()

    def on_train_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Remember the epoch."""
        if trainer.is_global_zero:
            interruption.where = f"in epoch {trainer.current_epoch + 1} of the training"

    def _set_handler(self) -> None:
        signal.signal(signal.SIGTERM, lambda signum, frame: interruption.end(signum))


class ForgetLostCheckpoints(Callback):
    """Strike from the list of best checkpoints those that are gone.

    A run that was stopped after a new best checkpoint had taken the place of another
    one, but before it was on record in ``last.ckpt``, goes on with the old list, whose
    average ESPnet3 could not compute.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look for the files of every list, which a checkpoint has just restored."""
        for callback in trainer.callbacks:
            if isinstance(callback, ModelCheckpoint):
                best = callback.best_k_models
                lost = [path for path in best if not Path(path).is_file()]
                for path in trainer.strategy.broadcast(lost):
                    del best[path]


class CheckSchedule(Callback):
    """Warn of a learning rate whose schedule is not as long as the training.

    Of tristagelr, onecyclelr and ExponentialDecayWarmup. A training that goes on keeps
    the schedule that it began with.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the two numbers of updates."""
        if trainer.ckpt_path is not None:
            return
        updates = int(trainer.estimated_stepping_batches)
        for config in trainer.lr_scheduler_configs:
            for option in ("max_steps", "total_steps"):
                length = getattr(config.scheduler, option, updates)
                if abs(length - updates) > MAX_DIFFERENCE * updates:
                    rank_zero_only(logger.warning)(
                        "The schedule of the learning rate has %d updates, but this "
                        "training %d. Give --scheduler_conf %s=%d",
                        *(length, updates, option, updates),
                    )


class AverageCheckpoints(AverageCheckpointsCallback):
    """Keep ``MONITOR.ave.pth``, named as in ESPnet2, the average of the best epochs.

    ESPnet3 averages at the end of each validation, before Lightning saves the
    checkpoint of that epoch, so that the last one is never part of it: this averages
    once more at the end of the training. And it writes over the average that is there,
    which a full disk or a kill would leave in pieces: here, a whole one replaces it.

    Args:
        output_dir: Directory of the experiment.
        best_ckpt_callbacks: What keeps the best epochs by each criterion.
    """

    def __init__(
        self, output_dir: str, best_ckpt_callbacks: list[ModelCheckpoint]
    ) -> None:
        self.exp_dir = Path(output_dir)
        super().__init__(self.exp_dir / "partial", best_ckpt_callbacks)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Average aside, and take over what is whole."""
        if not trainer.is_global_zero:
            return
        shutil.rmtree(self.output_dir, ignore_errors=True)
        self.output_dir.mkdir()
        super().on_validation_end(trainer, pl_module)
        for path in self.output_dir.glob("*.pth"):
            path.replace(self.exp_dir / path.name)
        for best in self.best_ckpt_callbacks:
            _link_average(self.exp_dir, best.monitor.replace("/", "."))
        self.output_dir.rmdir()

    # With the last epoch, as ESPnet2 does.
    on_fit_end = on_validation_end


def _link_average(exp_dir: Path, monitor: str) -> None:
    prefix, suffix = f"{monitor}.ave_", "best.pth"
    averages = {
        int(path.name.removeprefix(prefix).removesuffix(suffix)): path
        for path in exp_dir.glob(f"{prefix}*{suffix}")
    }
    if averages:
        average = averages[max(averages)]
        link = exp_dir / "partial" / f"{monitor}.ave.pth"
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(average.name)
        except OSError:
            # exFAT and many network drives have no links.
            shutil.copyfile(average, link)
        link.replace(exp_dir / link.name)
