"""Depthwise convolution along time, in the layout that ESPnet's encoders work in."""

import torch
from torch.nn import functional as F

# From about this many values on, torch computes the weight's gradient more slowly in
# the channels-last layout than in its usual one.
_LARGEST_TO_TRAIN = 1_000_000


class DepthwiseConv1d(torch.nn.Conv1d):
    """Conv1d with one filter a channel, many times faster on a CPU.

    ESPnet's layers hold (B, T, C) and convolve a transposed view of it. torch copies
    that to (B, C, T) and back, and convolves channel by channel. As a Conv2d over
    one row in channels-last layout, the same sums need no copy and are vectorised over
    channels.
    """

    @classmethod
    def from_conv1d(cls, conv: torch.nn.Conv1d) -> "DepthwiseConv1d":
        """Take over the parameters of a depthwise Conv1d of stride one."""
        fast = cls(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            padding=conv.padding,
            groups=conv.groups,
            bias=conv.bias is not None,
            device="meta",
        )
        fast.weight = conv.weight
        fast.bias = conv.bias
        return fast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve along time.

        Args:
            x: (B, C, T), best as a transposed view of contiguous (B, T, C).

        Returns:
            (B, C, T), a transposed view of contiguous (B, T, C).
        """
        is_training = torch.is_grad_enabled() and self.weight.requires_grad
        if x.device.type != "cpu" or (is_training and x.numel() > _LARGEST_TO_TRAIN):
            return super().forward(x)
        row = F.conv2d(
            x.unsqueeze(2),
            self.weight.unsqueeze(2),
            self.bias,
            padding=(0, *self.padding),
            groups=self.groups,
        )
        return row.squeeze(2)


def replace_depthwise_convs(module: torch.nn.Module) -> torch.nn.Module:
    """Replace each depthwise Conv1d in a module, keeping its parameters and name."""
    for parent in list(module.modules()):
        for name, conv in parent.named_children():
            if (
                type(conv) is torch.nn.Conv1d
                and conv.groups == conv.in_channels == conv.out_channels
                and conv.stride == (1,)
                and conv.dilation == (1,)
                and conv.padding_mode == "zeros"
            ):
                setattr(parent, name, DepthwiseConv1d.from_conv1d(conv))
    return module
