"""A convolution along time that compilers do not look into.

Of torch's own, Inductor lays out the gradient of the input for the very length that it
sees, and so compiles a training anew for each length.
"""

import torch
from torch.nn import functional as F


@torch.library.custom_op("espnet_fastformer::conv1d", mutates_args=())
def opaque_conv1d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Convolve along time, with as many zeros around as keep the length.

    Args:
        x: (B, C, T).
        weight: (C', C / groups, K), K odd.
        bias: (C',), or None.

    Returns:
        (B, C', T), contiguous.
    """
    groups, padding = x.size(1) // weight.size(1), weight.size(2) // 2
    return F.conv1d(x, weight, bias, padding=padding, groups=groups).contiguous()


@opaque_conv1d.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(x.size(0), weight.size(0), x.size(2))


@torch.library.custom_op("espnet_fastformer::conv1d_backward", mutates_args=())
def _conv1d_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_x, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        grad,
        x,
        weight,
        bias_sizes=[weight.size(0)],
        stride=[1],
        padding=[weight.size(2) // 2],
        dilation=[1],
        transposed=False,
        output_padding=[0],
        groups=x.size(1) // weight.size(1),
        output_mask=[True, True, True],
    )
    return grad_x.contiguous(), grad_weight.contiguous(), grad_bias


@_conv1d_backward.register_fake
def _(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape),
        weight.new_empty(weight.size(0)),
    )


def _save(ctx, inputs: tuple, output: torch.Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _backward(ctx, grad: torch.Tensor) -> tuple:
    grad_x, grad_weight, grad_bias = _conv1d_backward(grad, *ctx.saved_tensors)
    return grad_x, grad_weight, grad_bias if ctx.has_bias else None


opaque_conv1d.register_autograd(_backward, setup_context=_save)
