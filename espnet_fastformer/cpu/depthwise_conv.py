"""Depthwise convolution along time, in the layout that ESPnet's encoders work in."""

import torch
from torch.nn import functional as F

from espnet_fastformer.encoder.convolution import (
    DepthwiseConv1d as ChunkedDepthwiseConv1d,
)
from espnet_fastformer.layers.modes import (
    gradient,
    in_autocast_dtype,
    is_exporting,
    is_traced,
)

# Of the gradient of the filters: frames in a block, and values of the input that are
# copied at a time.
_FRAMES = 16
_VALUES = 2**20


class DepthwiseConv1d(ChunkedDepthwiseConv1d):
    """Conv1d with one filter a channel, many times faster on a CPU.

    ESPnet's layers hold (B, T, C) and convolve a transposed view of it. torch copies
    that to (B, C, T) and back, and convolves channel by channel. As a Conv2d over
    one row in channels-last layout, the same sums need no copy and are vectorised over
    channels.
    """

    replaces = ChunkedDepthwiseConv1d

    def convolve(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve along time, with zeros around.

        Args:
            x: (B, C, T), best as a transposed view of contiguous (B, T, C).

        Returns:
            (B, C, T), a transposed view of contiguous (B, T, C).
        """
        is_training = torch.is_grad_enabled() and self.weight.requires_grad
        # The gradient below is not for compilers.
        if x.device.type != "cpu" or (is_training and is_traced()):
            return super().convolve(x)
        row = x.unsqueeze(2)
        if not is_exporting():  # Layouts are the runtime's business.
            row = row.contiguous(memory_format=torch.channels_last)
        weight = self.weight.unsqueeze(2)
        # Its gradient is for a convolution that keeps the length.
        if is_training and self.keeps_length:
            inputs = in_autocast_dtype(row, weight, self.bias)
            return _DepthwiseRow.apply(*inputs).squeeze(2)
        padding = (0, self.padding[0])
        row = F.conv2d(row, weight, self.bias, padding=padding, groups=self.groups)
        return row.squeeze(2)


class _DepthwiseRow(torch.autograd.Function):
    """Depthwise convolution of (B, C, 1, T) that keeps the length.

    In channels-last layout torch's own gradient of the filters takes many times as
    long as the convolution.
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        """Convolve x with weight (C, 1, 1, K), K odd, and add bias or None."""
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight, bias)

    @staticmethod
    @gradient
    def backward(ctx, grad):
        """Return the gradients of x, weight and bias."""
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = _convolve(grad, weight.flip(-1), None)
        if ctx.needs_input_grad[1]:
            grad_weight = correlate(
                x.squeeze(2).mT, grad.squeeze(2).mT, weight.size(-1)
            )
            grad_weight = grad_weight.mT[:, None, None].to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum((0, 2, 3))
        return grad_x, grad_weight, grad_bias


def _convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    padding = weight.size(-1) // 2
    return F.conv2d(x, weight, bias, padding=(0, padding), groups=weight.size(0))


def correlate(x: torch.Tensor, y: torch.Tensor, num_offsets: int) -> torch.Tensor:
    """Sum ``x[b, t + k] * y[b, t]`` over b and t for each offset k around zero.

    Cut into blocks of frames, all sums are diagonals of one matrix product a channel.

    Args:
        x: (B, T, C).
        y: (B, T, C).
        num_offsets: K, odd; frames of x outside are zero.

    Returns:
        (K, C), in at least float32.
    """
    batch, frames, channels = x.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    reach = num_offsets // 2
    # One long utterance, with zeros between and at the end.
    padded = frames + 2 * reach
    blocks = -(-batch * padded // _FRAMES)
    at_once = min(channels, max(1, _VALUES // (batch * padded)))
    x_row = x.new_zeros(at_once, blocks * _FRAMES + 2 * reach, dtype=dtype)
    y_row = x.new_zeros(at_once, blocks * _FRAMES, dtype=dtype)
    x_frames = x_row[:, : batch * padded].view(at_once, batch, padded)
    y_frames = y_row[:, : batch * padded].view(at_once, batch, padded)
    window = _FRAMES + 2 * reach
    sums = x.new_empty(num_offsets, channels, dtype=dtype)
    for x_part, y_part, out in zip(
        x.split(at_once, 2), y.split(at_once, 2), sums.split(at_once, 1), strict=True
    ):
        size = x_part.size(2)
        x_frames[:size, :, reach : reach + frames] = x_part.permute(2, 0, 1)
        y_frames[:size, :, :frames] = y_part.permute(2, 0, 1)
        windows = x_row[:size].unfold(1, window, _FRAMES)  # (size, blocks, window)
        product = y_row[:size].view(size, blocks, _FRAMES).mT @ windows
        diagonals = product.as_strided(
            (num_offsets, size, _FRAMES), (1, _FRAMES * window, window + 1)
        )
        torch.sum(diagonals, -1, out=out)
    return sums
