"""An encoder that sees a recording through windows."""

from __future__ import annotations

from typing import Any

import torch

from espnet_fastformer.encoder.input_layer import receptive_field
from espnet_fastformer.inference.transcriber import overlapping_windows


class WindowedEncoder(torch.nn.Module):
    """Runs an encoder over windows that overlap by half, and joins their middles.

    Args:
        encoder: One of ESPnet's whose input layer has no padding.
        window: Output frames of a window.
    """

    def __init__(self, encoder: torch.nn.Module, window: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.window = window
        # ESPnet's model passes on its CTC output if this says so.
        self.interctc_use_conditioning = getattr(
            encoder, "interctc_use_conditioning", False
        )

    def forward(
        self, feats: torch.Tensor, lengths: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Encode features (1, T, F) into (1, T', D), without intermediate outputs.

        Raises:
            ValueError: There are several utterances.
        """
        if len(feats) > 1:
            raise ValueError("pooling_window needs batch_size: 1")
        size, stride = receptive_field(self.encoder.embed)
        frames = (feats.size(1) - size) // stride + 1
        parts = []
        for (first, last), (start, stop) in overlapping_windows(frames, self.window):
            piece = feats[:, first * stride : (last - 1) * stride + size]
            out, *_ = self.encoder(
                piece, lengths.new_tensor([piece.size(1)]), **options
            )
            if isinstance(out, tuple):  # with the outputs of InterCTC layers
                out = out[0]
            parts.append(out[:, start - first : stop - first])
        return torch.cat(parts, dim=1), lengths.new_tensor([frames]), None
