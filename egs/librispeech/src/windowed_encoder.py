"""An encoder that sees a recording through windows."""

from __future__ import annotations

from typing import Any

import torch

from espnet_fastformer.inference.windows import encode_in_windows


class WindowedEncoder(torch.nn.Module):
    """Runs an encoder over windows, in the place of that encoder in ESPnet's model.

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
        out = encode_in_windows(self.encoder, feats, self.window, **options)
        return out, lengths.new_tensor([out.size(1)]), None
