"""Long recordings a piece at a time."""

from collections.abc import Callable, Iterator

import torch

# Frames of which what a few maps hand on stays in the cache of a processor.
FRAMES_AT_ONCE = 4096


def is_long(frames: int) -> bool:
    """Return whether to go through time in pieces.

    Gradients need all that lies between anyway, and compilers fuse by themselves.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    return frames > FRAMES_AT_ONCE


def by_pieces(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> torch.Tensor:
    """Apply what maps each frame by itself, a part of the frames at a time.

    The result is the same, while what lies between would take more memory than all
    else in an hour of audio.

    Args:
        function: Maps (B, T, ...) to (B, T, D).
        inputs: Each (B, T, ...), or (B, 1, ...) if the same for all frames.

    Returns:
        (B, T, D).
    """
    frames = max(x.size(1) for x in inputs)
    if not is_long(frames):
        return function(*inputs)
    return torch.cat([function(*piece) for piece in pieces(*inputs)], dim=1)


def pieces(*inputs: torch.Tensor | None) -> Iterator[list[torch.Tensor | None]]:
    """Cut inputs of :func:`by_pieces`, of which some may be None."""
    frames = max(x.size(1) for x in inputs if x is not None)
    for first in range(0, frames, FRAMES_AT_ONCE):
        yield [
            x if x is None or x.size(1) == 1 else x[:, first : first + FRAMES_AT_ONCE]
            for x in inputs
        ]
