"""Two-dimensional convolution whose gradients take the faster layout each."""

from collections.abc import Iterator

import torch

from espnet_fastformer.layers.modes import gradient, is_exporting, is_traced


class Conv2d(torch.nn.Conv2d):
    """torch's convolution in channels-last layout, with a faster gradient on a CPU.

    There the output and the gradient of the input are computed faster than in the usual
    layout, but the gradient of the filters more slowly.
    """

    @classmethod
    def replacing(cls, conv: torch.nn.Module) -> "Conv2d | None":
        """Take over the parameters of a Conv2d.

        Returns:
            None if the module is anything else, or one that this does not compute.
        """
        if (
            type(conv) is not torch.nn.Conv2d
            or conv.padding_mode != "zeros"
            or isinstance(conv.padding, str)
        ):
            return None
        return take_over(cls, conv)

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


def take_over(cls: type, conv: torch.nn.Module) -> torch.nn.Module:
    """Build a subclass of a convolution, with the parameters of one."""
    fast = cls(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        groups=conv.groups,
        bias=conv.bias is not None,
        device="meta",
    )
    fast.weight, fast.bias = conv.weight, conv.bias
    return fast


def in_autocast_dtype(*tensors: torch.Tensor | None) -> Iterator[torch.Tensor | None]:
    """Convert tensors as autocast does before a convolution."""
    for tensor in tensors:
        if tensor is not None and torch.is_autocast_enabled(tensor.device.type):
            # Autocast leaves float64 as it is.
            if tensor.dtype is not torch.float64:
                tensor = tensor.to(torch.get_autocast_dtype(tensor.device.type))
        yield tensor


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
