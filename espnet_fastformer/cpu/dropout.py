"""Dropout that draws its random numbers four at a time on a CPU."""

import torch
from torch.autograd.function import once_differentiable

from espnet_fastformer.encoder.replacement import Replacement
from espnet_fastformer.layers.modes import is_traced

_LEVELS = 2**16


class Dropout(Replacement, torch.nn.Dropout):
    """torch's dropout, faster on a CPU.

    There torch draws a random number of 64 bits for each value, one after the other.
    16 bits each do as well: the probability is rounded to a multiple of 1 / 65536.
    """

    replaces = torch.nn.Dropout

    @classmethod
    def fits(cls, layer: torch.nn.Module) -> bool:
        """See :meth:`Replacement.fits`."""
        return super().fits(layer) and not layer.inplace

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero values at random, in training.

        Args:
            x: Any shape.

        Returns:
            The values that stay are scaled by 1 / (1 - p).
        """
        levels = round(self.p * _LEVELS)
        if (
            not self.training
            or x.device.type != "cpu"
            or levels in (0, _LEVELS)
            or is_traced()
        ):
            return super().forward(x)
        return _Dropout.apply(x, levels)


class _Dropout(torch.autograd.Function):
    """Dropout with probability levels / 65536; remembers a byte a value."""

    @staticmethod
    def forward(ctx, x, levels):
        """Drop values of x."""
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
        draws = words.random_(-(2**63), None).view(torch.int16)[: x.numel()]
        is_dropped = (draws < levels - _LEVELS // 2).view(x.shape)
        ctx.save_for_backward(is_dropped)
        ctx.scale = _LEVELS / (_LEVELS - levels)
        return (x * ctx.scale).masked_fill_(is_dropped, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """Return the gradient of x."""
        (is_dropped,) = ctx.saved_tensors
        return (grad * ctx.scale).masked_fill_(is_dropped, 0.0), None
