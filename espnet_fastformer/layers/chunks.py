"""Time in chunks, of which a frame sees the earlier ones and its own: for streaming.

Time is cut into chunks of C frames from the first frame on. A frame sees the whole of
its own chunk, and all chunks before it or the last few of them. What a stream has to
remember are sums over chunks, see :mod:`espnet_fastformer.layers.sums`, and for
convolutions a few frames: the state of a layer, whose size does not depend on how long
the stream is.

A whole utterance in chunks and a stream are the same call. A stream hands on the next
chunks, with the state that the call before returned.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional as F


class Chunks:
    """How one call of a layer, or of layers in order, cuts time, and what came before.

    Args:
        size: Frames of a chunk C.
        num_left: Earlier chunks that a frame sees; None for all.
        states: What the layers remember of earlier calls, in the order of the calls,
            each (B, ...); None at the beginning of an utterance.

    Attributes:
        initial_states: The same for the beginning of an utterance.
        next_states: The same after this call.
    """

    def __init__(
        self,
        size: int,
        num_left: int | None = None,
        states: list[torch.Tensor] | None = None,
    ):
        self.size = size
        self.num_left = num_left
        self._states = None if states is None else iter(states)
        self.initial_states: list[torch.Tensor] = []
        self.next_states: list[torch.Tensor] = []

    def state(self, *initial: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the next tensors of the state, which initially are these.

        Raises:
            ValueError: If the state is that of other layers.
        """
        self.initial_states.extend(initial)
        if self._states is None:
            return initial
        state = tuple(next(self._states, None) for _ in initial)
        for now, first in zip(state, initial, strict=True):
            if now is None or now.shape != first.shape:
                found = "is missing" if now is None else f"has shape {tuple(now.shape)}"
                raise ValueError(
                    "the state of the stream belongs to another model, batch or chunk "
                    f"size: a part of shape {tuple(first.shape)} {found}"
                )
        return state

    def remember(self, *state: torch.Tensor) -> None:
        """Keep the state of a layer for the next call."""
        self.next_states.extend(state)


# Of each thread, as several may call one model.
_call = threading.local()


class ChunkedLayer:
    """A layer whose output depends on other frames, and that can do it in chunks."""

    @property
    def chunks(self) -> Chunks | None:
        """How time is cut in the present call; None for an utterance as one."""
        return getattr(_call, "chunks", None)


@contextmanager
def in_chunks(chunks: Chunks) -> Iterator[None]:
    """Let layers that are called cut time in this way."""
    _call.chunks = chunks
    try:
        yield
    finally:
        _call.chunks = None


def pad_to_chunks(
    x: torch.Tensor, mask: torch.Tensor | None, size: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Fill up the last chunk of (B, T, D) and of its mask (B, 1, T) with padding."""
    missing = -x.size(1) % size
    if missing == 0:
        return x, mask
    if mask is None:
        mask = torch.ones(x.size(0), 1, x.size(1), dtype=torch.bool, device=x.device)
    return F.pad(x, (0, 0, 0, missing)), F.pad(mask, (0, missing))
