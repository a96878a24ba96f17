"""The guard of a training against what is no number.

ESPnet3 skips batches whose loss is none, does not name them, and checks no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from espnet3.components.data.dataset import CombinedDataset
from lightning.pytorch import Callback, LightningModule, Trainer

MAX_NAMED = 8


class StopAtNaN(Callback):
    """End a training whose loss or gradient is no number, before it does any harm.

    ESPnet3 skips batches without a loss and says their number alone. A gradient that is
    no number would go on into the parameters, and they into the next checkpoint.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the loss of the model."""
        pl_module.model.register_forward_hook(self._check_loss)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: tuple, batch_idx: int
    ) -> None:
        """Remember the utterances."""
        self._utterances = pl_module.train_dataset, batch[0]

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: tuple,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Remember the utterances."""
        self._utterances = pl_module.valid_dataset, batch[0]

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the gradient.

        Raises:
            FloatingPointError: It is infinite or no number.
        """
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            # The scale of float16 is found by making gradients overflow.
            return
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        self._check("gradient", torch.nn.utils.get_total_norm(gradients))

    def _check_loss(self, module: torch.nn.Module, inputs, output: tuple) -> None:
        self._check("loss", output[0])

    def _check(self, name: str, value: torch.Tensor) -> None:
        if value.isfinite():
            return
        files = _audio_files(*self._utterances)
        listed = "".join(f"\n  {file}" for file in files[:MAX_NAMED])
        if len(files) > MAX_NAMED:
            listed += f"\n  and {len(files) - MAX_NAMED} more"
        raise FloatingPointError(
            f"The {name} of this batch is {value.item()}:{listed}\nListen to these "
            "files, or try a lower learning rate (optim_conf: lr, scheduler_conf), a "
            "lower grad_clip, or use_amp: false. Checkpoints are as they were at the "
            "end of the last epoch."
        )


def _audio_files(dataset: CombinedDataset, uids: Sequence[str]) -> list[str]:
    """Look up utterances that ESPnet3 calls by their place in all subsets together."""
    utterances = [*chain.from_iterable(data.utterances for data in dataset.datasets)]
    return [utterances[int(uid)].audio for uid in uids]
