"""Sinusoidal positions of any length, with ESPnet's values and parameter names."""

import math

import torch
from espnet2.legacy.nets.pytorch_backend.transformer.embedding import (
    PositionalEncoding,
    ScaledPositionalEncoding,
)

from espnet_fastformer.layers.chunks import ChunkedLayer
from espnet_fastformer.layers.modes import is_traced


class SinusoidalEncoding(ChunkedLayer, PositionalEncoding):
    """ESPnet's ``abs_pos``, whose table at least doubles whenever it has to grow.

    ESPnet computes the whole table again for each utterance longer than all before, and
    rounds it for ever when it meets half precision. A compiled or exported graph
    holds no table: it computes the positions of its input.
    """

    pe: torch.Tensor

    def extend_pe(self, x: torch.Tensor) -> None:
        """Make the table long enough for x (B, T, ...), on its device, in float32."""
        frames = x.size(1)
        # What is made in inference mode could not be saved for a gradient later.
        with torch.inference_mode(False):
            if self.pe is None:
                self.pe = sinusoids(frames, self.d_model, x.device)
            elif self.pe.size(1) < frames:
                frames = max(frames, 2 * self.pe.size(1))
                self.pe = sinusoids(frames, self.d_model, x.device)
            elif self.pe.device != x.device:
                self.pe = self.pe.to(x.device)

    def positions(self, x: torch.Tensor) -> torch.Tensor:
        """Return the positions of x (B, T, D) as (1 or B, T, D), in its dtype."""
        if self.chunks is not None:
            start = torch.zeros(x.size(0), dtype=torch.int64, device=x.device)
            (start,) = self.chunks.state(start)
            self.chunks.remember(start + x.size(1))
            return sinusoids(x.size(1), self.d_model, x.device, start).to(x.dtype)
        if is_traced():
            return sinusoids(x.size(1), self.d_model, x.device).to(x.dtype)
        self.extend_pe(x)
        return self.pe[:, : x.size(1)].to(x.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale the input (B, T, D) and add its positions."""
        return self.dropout(x * self.xscale + self.positions(x))


class ScaledSinusoidalEncoding(SinusoidalEncoding, ScaledPositionalEncoding):
    """ESPnet's ``scaled_abs_pos``: positions times a learned scale."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the scaled positions of the input (B, T, D)."""
        return self.dropout(x + self.alpha * self.positions(x))


def sinusoids(
    frames: int, size: int, device: torch.device, start: torch.Tensor | None = None
) -> torch.Tensor:
    """Return sine and cosine in turns, float32.

    Args:
        frames: Number of frames T.
        size: Number of channels D.
        device: That of the result.
        start: Position of the first frame of each utterance (B,); None for 0.

    Returns:
        (1 or B, T, D).
    """
    position = torch.arange(frames, device=device)[None]
    if start is not None:
        position = position + start[:, None]
    channel = torch.arange(0, size, 2, dtype=torch.float32, device=device)
    frequency = torch.exp(channel * -(math.log(10000.0) / size))
    angles = position.to(torch.float32)[..., None] * frequency
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(2)
