"""Two-dimensional convolution whose gradients take the faster layout each."""

import torch

from espnet_fastformer.encoder.replacement import Replacement
from espnet_fastformer.layers.modes import (
    gradient,
    in_autocast_dtype,
    is_exporting,
    is_traced,
)


class Conv2d(Replacement, torch.nn.Conv2d):
    """torch's convolution in channels-last layout, with a faster gradient on a CPU.

    There the output and the gradient of the input are computed faster than in the usual
    layout, but the gradient of the filters more slowly.
    """

    replaces = torch.nn.Conv2d

    @classmethod
    def fits(cls, layer: torch.nn.Module) -> bool:
        """See :meth:`Replacement.fits`."""
        return (
            super().fits(layer)
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve.

        Args:
            x: (B, C, T, F).

        Returns:
            (B, C', T', F'), in channels-last layout.
        """
        weight, bias = self.weight, self.bias
        is_training = torch.is_grad_enabled() and weight.requires_grad
        if not is_exporting():  # Layouts are the runtime's business.
            weight = weight.to(memory_format=torch.channels_last)
        if x.device.type != "cpu" or not is_training or is_traced():
            return self._conv_forward(x, weight, bias)
        arguments = (self.stride, self.padding, self.dilation, self.groups)
        inputs = in_autocast_dtype(x, weight, bias)
        return _Convolution.apply(*inputs, arguments)


class _Convolution(torch.autograd.Function):
    """Convolution whose gradients are computed one by one."""

    @staticmethod
    def forward(ctx, x, weight, bias, arguments):
        """Convolve x (B, C, T, F) with weight, and add bias or None."""
        ctx.save_for_backward(x, weight)
        ctx.arguments = arguments
        stride, padding, dilation, groups = arguments
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    @gradient
    def backward(ctx, grad):
        """Return the gradients of x, weight and bias."""
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        grad = grad.contiguous(memory_format=torch.channels_last)
        if ctx.needs_input_grad[0]:
            grad_x = _gradient(ctx, grad, x, weight, 0)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(
                weight, dtype=torch.promote_types(weight.dtype, torch.float32)
            )
            # One by one, for the sake of memory.
            for utterance in zip(grad.split(1), x.split(1), strict=True):
                usual = (tensor.contiguous() for tensor in (*utterance, weight))
                grad_weight += _gradient(ctx, *usual, 1)
            grad_weight = grad_weight.to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum((0, 2, 3))
        return grad_x, grad_weight, grad_bias, None


def _gradient(ctx, grad, x, weight, index: int) -> torch.Tensor:
    """Return the gradient of x (index 0) or of weight (1)."""
    stride, padding, dilation, groups = ctx.arguments
    return torch.ops.aten.convolution_backward(
        grad,
        x,
        weight,
        None,
        stride,
        padding,
        dilation,
        False,
        [0, 0],
        groups,
        [index == 0, index == 1, False],
    )[index]
