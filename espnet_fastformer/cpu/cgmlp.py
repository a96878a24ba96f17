"""Convolutional gating MLP for recordings of any length."""

import torch
from espnet2.asr.layers.cgmlp import ConvolutionalGatingMLP as ESPnetGatingMLP

from espnet_fastformer.encoder.replacement import Replacement
from espnet_fastformer.layers.pieces import by_pieces


class ConvolutionalGatingMLP(Replacement, ESPnetGatingMLP):
    """ESPnet's layer, a part of the frames at a time where there are many."""

    replaces = ESPnetGatingMLP

    def forward(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Map each frame with those that its convolution reads.

        Args:
            x: (B, T, D), or a tuple of it and a positional embedding.
            mask: (B, 1, T), true on real frames; None if all are real.

        Returns:
            (B, T, D), or a tuple of it and the positional embedding.
        """
        x, *pos_emb = x if isinstance(x, tuple) else (x,)
        out = by_pieces(
            self._forward_piece,
            x,
            None if mask is None else mask.mT,
            context=self.csgu.conv.padding[0],
        )
        return (out, *pos_emb) if pos_emb else out

    def _forward_piece(
        self, x: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        return super().forward(x, None if mask is None else mask.mT)
