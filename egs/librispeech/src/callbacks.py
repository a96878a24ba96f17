"""What is done at the end of a training."""

from __future__ import annotations

from pathlib import Path

from espnet3.components.callbacks.default_callbacks import AverageCheckpointsCallback
from lightning.pytorch import Callback, LightningModule, Trainer

from .report import plot_training_curves


class FinishTraining(Callback):
    """Average the best checkpoints and draw the training curves.

    ESPnet3 averages at the end of each validation, before Lightning saves the
    checkpoint of that epoch, so that the last one is never part of it.

    Args:
        exp_dir: Directory of the experiment.
    """

    def __init__(self, exp_dir: str) -> None:
        self.exp_dir = Path(exp_dir)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave ``MONITOR.ave.pth``, named as in ESPnet2, and the picture."""
        if not trainer.is_global_zero:
            return
        for callback in trainer.callbacks:
            if isinstance(callback, AverageCheckpointsCallback):
                callback.on_validation_end(trainer, pl_module)
                for best in callback.best_ckpt_callbacks:
                    _link_average(self.exp_dir, best.monitor.replace("/", "."))
        plot_training_curves(self.exp_dir)


def _link_average(exp_dir: Path, monitor: str) -> None:
    prefix, suffix = f"{monitor}.ave_", "best.pth"
    averages = {
        int(path.name.removeprefix(prefix).removesuffix(suffix)): path
        for path in exp_dir.glob(f"{prefix}*{suffix}")
    }
    if averages:
        link = exp_dir / f"{monitor}.ave.pth"
        link.unlink(missing_ok=True)
        link.symlink_to(averages[max(averages)].name)
