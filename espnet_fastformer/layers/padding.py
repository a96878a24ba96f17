"""Where frames are padding, made once for all layers that get the same mask."""

import torch

from espnet_fastformer.layers.modes import is_traced


def share_padding(mask: torch.Tensor) -> None:
    """Let :func:`padding_of` hand out one tensor for a mask that nobody changes."""
    mask._padding = mask.eq(0)


def padding_of(mask: torch.Tensor) -> torch.Tensor:
    """Return where a mask has padding.

    Args:
        mask: (B, 1, T), any dtype, non-zero on real frames.

    Returns:
        (B, 1, T), true on padding.
    """
    shared = None if is_traced() else getattr(mask, "_padding", None)
    return mask.eq(0) if shared is None else shared
