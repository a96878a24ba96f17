"""The training step of a process that has a share of each batch."""

from __future__ import annotations

from typing import Any

import torch
from espnet2.torch_utils.recursive_op import recursive_average
from espnet3.components.modeling.lightning_module import ESPnetLightningModule


class SharedBatchModule(ESPnetLightningModule):
    """Trains on shares of a batch as one process would on the whole batch.

    ESPnet3 averages the gradients of all processes alike, although their shares may
    differ by an utterance, and logs the training loss of the first one. Here, as in
    ESPnet2, a loss counts by its number of utterances, and all of them are logged.
    """

    def training_step(
        self, batch: tuple[list[str], dict[str, torch.Tensor]], batch_idx: int
    ) -> torch.Tensor | None:
        """Return the loss of the share, or None if there is none to learn from."""
        loss = super().training_step(batch, batch_idx)
        if loss is None or not torch.distributed.is_initialized():
            return loss
        utt_ids, _ = batch
        share = torch.tensor(float(len(utt_ids)), device=loss.device)
        total = share.clone()
        torch.distributed.all_reduce(total)
        return loss * (torch.distributed.get_world_size() * share / total)

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
