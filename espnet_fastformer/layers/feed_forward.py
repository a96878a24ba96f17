"""Feed-forward layer for recordings of any length."""

import torch
from espnet2.legacy.nets.pytorch_backend.transformer.positionwise_feed_forward import (
    PositionwiseFeedForward as ESPnetFeedForward,
)

# Frames whose hidden values stay in the cache of a processor.
FRAMES_AT_ONCE = 4096


class PositionwiseFeedForward(ESPnetFeedForward):
    """ESPnet's layer, a part of the frames at a time where there are many.

    Each frame is mapped by itself, so that the result is the same, while the hidden
    values of an hour of audio would take more memory than all else.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map each frame.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).
        """
        if (
            torch.compiler.is_compiling()
            or torch.is_grad_enabled()
            or x.size(1) <= FRAMES_AT_ONCE
        ):
            return super().forward(x)
        return torch.cat(
            [ESPnetFeedForward.forward(self, x) for x in x.split(FRAMES_AT_ONCE, 1)],
            dim=1,
        )
