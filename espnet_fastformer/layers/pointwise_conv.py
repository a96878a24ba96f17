"""Convolution of one tap along time, as compilers take it best."""

import torch
from torch.nn import functional as F

from espnet_fastformer.layers.conv2d import take_over
from espnet_fastformer.layers.modes import is_compiling


class PointwiseConv1d(torch.nn.Conv1d):
    """Conv1d of one tap, which is a linear map of each frame to a compiler.

    Inductor compiles the gradient of a convolution anew for each length.
    """

    @classmethod
    def replacing(cls, conv: torch.nn.Module) -> "PointwiseConv1d | None":
        """Take over the parameters of a Conv1d of one tap, stride one and one group.

        Returns:
            None if the module is anything else.
        """
        if not (
            type(conv) is torch.nn.Conv1d
            and conv.kernel_size == conv.stride == (1,)
            and conv.padding == (0,)
            and conv.groups == 1
        ):
            return None
        return take_over(cls, conv)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map the channels of (B, C, T) to (B, C', T)."""
        if is_compiling():
            return F.linear(x.mT, self.weight.squeeze(2), self.bias).mT
        return super().forward(x)
