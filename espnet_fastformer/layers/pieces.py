"""Long recordings a piece at a time."""

from collections.abc import Callable, Iterator

import torch

from espnet_fastformer.layers.modes import is_traced

# Frames of which what a few maps hand on stays in the cache of a processor.
FRAMES_AT_ONCE = 4096


def is_long(frames: int) -> bool:
    """Return whether to go through time in pieces.

    Gradients need all that lies between anyway, and compilers fuse by themselves.
    """
    if is_traced() or torch.is_grad_enabled():
        return False
    return frames > FRAMES_AT_ONCE


def by_pieces(
    function: Callable[..., torch.Tensor],
    *inputs: torch.Tensor | None,
    context: int = 0,
) -> torch.Tensor:
    """Apply what maps each frame with few others, a part of the frames at a time.

    The result is the same, while what lies between would take more memory than all
    else in an hour of audio.

    Args:
        function: Maps (B, T, ...) to (B, T, D).
        inputs: Each (B, T, ...), or (B, 1, ...) if the same for all frames, or None.
        context: Frames on each side that a frame's output depends on.

    Returns:
        (B, T, D).
    """
    frames = max(x.size(1) for x in inputs if x is not None)
    if not is_long(frames):
        return function(*inputs)
    return torch.cat(
        [
            function(*piece)[:, skipped : skipped + FRAMES_AT_ONCE]
            for skipped, piece in pieces(*inputs, context=context)
        ],
        dim=1,
    )


def pieces(
    *inputs: torch.Tensor | None, context: int = 0
) -> Iterator[tuple[int, list[torch.Tensor | None]]]:
    """Cut inputs of :func:`by_pieces` where they are long.

    Yields:
        Number of frames of context that come first, and the pieces with context.
    """
    frames = max(x.size(1) for x in inputs if x is not None)
    if not is_long(frames):
        yield 0, list(inputs)
        return
    for first in range(0, frames, FRAMES_AT_ONCE):
        start = max(0, first - context)
        part = slice(start, first + FRAMES_AT_ONCE + context)
        yield (
            first - start,
            [x if x is None or x.size(1) == 1 else x[:, part] for x in inputs],
        )
