"""Depthwise convolution along time, in the layout that ESPnet's encoders work in."""

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# Values that the gradient of the filters goes through at a time: what a core caches.
_BLOCK = 2**18


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
        if x.device.type != "cpu":
            return super().forward(x)
        row = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        weight = self.weight.unsqueeze(2)
        padding = self.padding[0]
        is_training = torch.is_grad_enabled() and self.weight.requires_grad
        # Its gradient is for a convolution that keeps the length, as ESPnet's do.
        if is_training and 2 * padding + 1 == self.kernel_size[0]:
            if torch.is_autocast_enabled("cpu"):
                dtype = torch.get_autocast_dtype("cpu")
                row, weight = row.to(dtype), weight.to(dtype)
            row = _DepthwiseRow.apply(row, weight)
            if self.bias is not None:
                row = row + self.bias.to(row.dtype).view(-1, 1, 1)
        else:
            row = F.conv2d(
                row, weight, self.bias, padding=(0, padding), groups=self.groups
            )
        return row.squeeze(2)


class _DepthwiseRow(torch.autograd.Function):
    """Depthwise convolution of (B, C, 1, T) that keeps the length.

    In channels-last layout torch's own gradient of the filters takes up to a hundred
    times as long as the convolution.
    """

    @staticmethod
    def forward(ctx, x, weight):
        """Convolve x with weight (C, 1, 1, K), K odd."""
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """Return the gradients of x and weight."""
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = _convolve(grad, weight.flip(-1))
        if ctx.needs_input_grad[1]:
            grad_weight = correlate(
                x.squeeze(2).mT, grad.squeeze(2).mT, weight.size(-1)
            )
            grad_weight = grad_weight.mT[:, None, None].to(weight.dtype)
        return grad_x, grad_weight


def _convolve(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    padding = weight.size(-1) // 2
    return F.conv2d(x, weight, padding=(0, padding), groups=weight.size(0))


def correlate(x: torch.Tensor, y: torch.Tensor, num_offsets: int) -> torch.Tensor:
    """Sum ``x[b, t + k] * y[b, t]`` over b and t for each offset k around zero.

    Args:
        x: (B, T, C).
        y: (B, T, C).
        num_offsets: K, odd; frames of x outside are zero.

    Returns:
        (K, C), in at least float32.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    reach = num_offsets // 2
    # One long utterance, with zeros between: 0 frames of y for 2 * reach of x.
    x = F.pad(x.to(dtype), (0, 0, reach, reach)).flatten(0, 1)
    y = F.pad(y.to(dtype), (0, 0, 0, 2 * reach)).flatten(0, 1)
    sums = x.new_zeros(num_offsets, x.size(1))
    length = y.size(0) - 2 * reach
    step = max(1, _BLOCK // y.size(1))
    for start in range(0, length, step):
        block = y[start : min(start + step, length)]
        for offset in range(num_offsets):
            first = start + offset
            sums[offset] += (x[first : first + len(block)] * block).sum(0)
    return sums


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
