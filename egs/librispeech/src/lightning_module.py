"""The model of a training, with what each of its processes does in every epoch.

ESPnet3 weighs the shares of all processes alike, logs the loss of the first one's,
draws other numbers where it resumes, and starts from no other model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from espnet2.torch_utils.recursive_op import recursive_average
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet3.components.modeling.lightning_module import ESPnetLightningModule
from lightning.pytorch.utilities.types import LRSchedulerTypeUnion
from omegaconf import DictConfig

from .report import record_command


class SharedBatchModule(ESPnetLightningModule):
    """Trains on shares of a batch as one process would on the whole batch.

    ESPnet3 averages the gradients of all processes alike, although their shares may
    differ by an utterance, and logs the training loss of the first one. Here, as in
    ESPnet2, a loss counts by its number of utterances, and all of them are logged.
    Epochs are counted from 1 in all that is logged, and in the names of checkpoints.

    Args:
        model: ESPnet's model.
        config: Training config of ESPnet3, with ESPnet2's ``use_tf32``, ``init_param``
            and ``ignore_init_mismatch``.

    Raises:
        ValueError: The model cannot take the parameters of ``init_param``.
    """

    def __init__(self, model: torch.nn.Module, config: DictConfig) -> None:
        super().__init__(model, config)
        # ESPnet3 has set "high" for every training.
        torch.set_float32_matmul_precision("high" if config.use_tf32 else "highest")
        # A training that goes on has its own parameters.
        for init_param in () if config.fit else config.init_param:
            self._load(init_param)

    def on_train_epoch_start(self) -> None:
        """Seed the epoch by itself, in each process another way.

        Checkpoints hold no state of random number generators. So a training that goes
        on from one draws the same numbers as one that was never stopped.
        """
        key = (self.config.seed, self.current_epoch, self.global_rank)
        (seed,) = np.random.SeedSequence(key).generate_state(1)
        set_all_random_seed(int(seed))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Record the command as soon as it has left something: a refused one does not.

        Args:
            checkpoint: What will be saved.
        """
        super().on_save_checkpoint(checkpoint)
        record_command(Path(self.config.exp_dir))

    def training_step(
        self, batch: tuple[list[str], dict[str, torch.Tensor]], batch_idx: int
    ) -> torch.Tensor | None:
        """Return the loss of the share, or None if there is none to learn from."""
        self._log_epoch()
        loss = super().training_step(batch, batch_idx)
        if loss is None or not torch.distributed.is_initialized():
            return loss
        utt_ids, _ = batch
        share = torch.tensor(float(len(utt_ids)), device=loss.device)
        total = share.clone()
        torch.distributed.all_reduce(total)
        return loss * (torch.distributed.get_world_size() * share / total)

    def on_validation_epoch_end(self) -> None:
        """Log the epoch, which Lightning would count from 0."""
        self._log_epoch()

    def on_train_epoch_end(self) -> None:
        """Step a scheduler that watches a criterion before ``last.ckpt`` is saved.

        Lightning does it afterwards, so that a training which goes on from the
        checkpoint would not know about one epoch.
        """
        metrics = self.trainer.callback_metrics
        for config in self.trainer.lr_scheduler_configs:
            # What is missing, Lightning names.
            if config.reduce_on_plateau and config.monitor in metrics:
                config.scheduler.step(metrics[config.monitor])

    def lr_scheduler_step(
        self, scheduler: LRSchedulerTypeUnion, metric: torch.Tensor | None
    ) -> None:
        """Step a scheduler that watches no criterion."""
        if metric is None:
            super().lr_scheduler_step(scheduler, metric)

    def _load(self, init_param: str) -> None:
        """Load parameters as ``espnet2.bin.asr_train --init_param`` does."""
        try:
            load_pretrained_model(
                init_param, self.model, self.config.ignore_init_mismatch
            )
        except Exception as error:  # of ESPnet and PyTorch, of any class
            raise ValueError(
                f"--init_param {init_param}: {error}. Give parameters (*.pth) of such "
                "a model, or --ignore_init_mismatch true"
            ) from error

    def _log_epoch(self) -> None:
        self.log("epoch", float(self.current_epoch + 1), batch_size=1)

    def _log_stats(
        self,
        mode: str,
        stats: dict[str, torch.Tensor | None],
        weight: torch.Tensor,
        extra_stats: dict[str, Any] | None = None,
    ) -> None:
        if torch.distributed.is_initialized():
            stats, weight = recursive_average(stats, weight, distributed=True)
        super()._log_stats(mode, stats, weight, extra_stats)
