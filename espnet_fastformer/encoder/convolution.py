"""Convolutions along time of ESPnet's layers: in chunks, and as compilers take them.

Of torch's own, Inductor lays out the gradient for the very length that it sees, and so
compiles a training anew for each length. Therefore compilers do not look into depthwise
ones, and get pointwise ones as linear maps.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from espnet_fastformer.encoder.replacement import Replacement
from espnet_fastformer.layers.chunks import ChunkedLayer, Chunks
from espnet_fastformer.layers.modes import in_autocast_dtype, is_compiling


class DepthwiseConv1d(ChunkedLayer, Replacement, torch.nn.Conv1d):
    """Conv1d with one filter a channel and stride one."""

    replaces = torch.nn.Conv1d

    @classmethod
    def fits(cls, layer: torch.nn.Module) -> bool:
        """See :meth:`Replacement.fits`."""
        return (
            super().fits(layer)
            and layer.groups == layer.in_channels == layer.out_channels
            and layer.stride == layer.dilation == (1,)
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        )

    @property
    def keeps_length(self) -> bool:
        """Whether the output has as many frames as the input, as ESPnet's have."""
        return 2 * self.padding[0] + 1 == self.kernel_size[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve along time.

        Args:
            x: (B, C, T).

        Returns:
            (B, C, T).
        """
        if self.chunks is not None:
            return convolve_chunks(self.convolve, x, self.padding[0], self.chunks)
        return self.convolve(x)

    def convolve(self, x: torch.Tensor) -> torch.Tensor:
        """Do as :meth:`forward` with zeros around the input."""
        if is_compiling() and torch.is_grad_enabled() and self.keeps_length:
            return opaque_conv1d(*in_autocast_dtype(x, self.weight, self.bias))
        return self._conv_forward(x, self.weight, self.bias)


class PointwiseConv1d(Replacement, torch.nn.Conv1d):
    """Conv1d of one tap, stride one and one group."""

    replaces = torch.nn.Conv1d

    @classmethod
    def fits(cls, layer: torch.nn.Module) -> bool:
        """See :meth:`Replacement.fits`."""
        return (
            super().fits(layer)
            and layer.kernel_size == layer.stride == (1,)
            and layer.padding == (0,)
            and layer.groups == 1
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map the channels of (B, C, T) to (B, C', T)."""
        if is_compiling():
            return F.linear(x.mT, self.weight.squeeze(2), self.bias).mT
        return super().forward(x)


def convolve_chunks(
    convolve: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    reach: int,
    chunks: Chunks,
) -> torch.Tensor:
    """Convolve along time with real frames before a chunk, and zeros after it.

    As "dynamic chunk convolution" of https://arxiv.org/abs/2304.09325. Takes and leaves
    a state of the last frames (B, reach, D).

    Args:
        convolve: Maps (B, D, T) to the same shape, with zeros around.
        x: (B, D, T), zero on padding.
        reach: Frames that it reads on each side.
        chunks: How time is cut.

    Returns:
        (B, D, T).
    """
    batch, channels, _ = x.shape
    frames = x.mT
    if reach > 0:
        (left,) = chunks.state(frames.new_zeros(batch, reach, channels))
        frames = torch.cat([left.to(x.dtype), frames], dim=1)
        chunks.remember(frames[:, x.size(2) :])
    rows = frames.unfold(1, reach + chunks.size, chunks.size)  # (B, N, D, reach + C)
    rows = rows.mT.flatten(0, 1).mT  # Contiguous as (B * N, reach + C, D).
    out = convolve(rows)[..., reach:].mT
    return out.reshape(batch, -1, channels).mT


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
