"""Feed-forward layer for recordings of any length."""

import torch
from espnet2.legacy.nets.pytorch_backend.transformer.positionwise_feed_forward import (
    PositionwiseFeedForward as ESPnetFeedForward,
)

from espnet_fastformer.encoder.replacement import Replacement
from espnet_fastformer.layers.pieces import by_pieces


class PositionwiseFeedForward(Replacement, ESPnetFeedForward):
    """ESPnet's layer, a part of the frames at a time where there are many."""

    replaces = ESPnetFeedForward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map each frame.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).
        """
        return by_pieces(super().forward, x)
