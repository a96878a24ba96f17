"""Time in chunks, of which a frame sees the earlier ones and its own: for streaming.

Time is cut into chunks of C frames from the first frame on. A frame sees the whole of
its own chunk, and all chunks before it or the last few of them. A mixer sums over what
a frame sees in two steps: over each chunk by itself, for all chunks at once, and over
chunks. What a stream has to remember is the result of the second step, or a few of the
first: the state of a layer, whose size does not depend on how long the stream is.

A whole utterance in chunks and a stream are the same call. A stream hands on the next
chunks, with the state that the call before returned.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.nn import functional as F

from espnet_fastformer.layers.weighted_sum import (
    NO_KEY,
    exp_bias,
    greatest_key,
    product,
    weigh_values,
)


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

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """View (B, T, ...) as (B * N, C, ...); T is a multiple of C."""
        return x.reshape(-1, self.size, *x.shape[2:])


class ChunkedLayer:
    """A layer whose output depends on other frames, and that can do it in chunks."""

    #: How time is cut in the present call; None for an utterance as one.
    chunks: Chunks | None = None


@contextmanager
def in_chunks(module: torch.nn.Module, chunks: Chunks | None) -> Iterator[None]:
    """Let the layers of a module cut time in this way."""
    layers = [m for m in module.modules() if isinstance(m, ChunkedLayer)]
    for layer in layers:
        layer.chunks = chunks
    try:
        yield
    finally:
        for layer in layers:
            layer.chunks = None


class Sums(NamedTuple):
    """Sums of exp(k) v and of exp(k), up to a factor exp(top) each.

    Attributes:
        sums: (B, N, H, V + K), or with frames (B, N, H, C, V + K); float32 or float64.
        top: Greatest key k of what is summed, (B, N, H, K).
    """

    sums: torch.Tensor
    top: torch.Tensor

    def part(self, first: int, count: int) -> "Sums":
        """Return those of some chunks."""
        return Sums(*(x.narrow(1, first, count) for x in self))

    def relative_to(self, top: torch.Tensor) -> torch.Tensor:
        """Return the sums up to a factor of ``exp(top)``, which is no less."""
        factor = torch.exp(self.top - top).unsqueeze(-2)
        if self.sums.dim() > self.top.dim():
            factor = factor.unsqueeze(-3)
        sums = self.sums.unflatten(-1, (-1, self.top.size(-1)))
        return (sums * factor).flatten(-2)

    def plus(self, other: "Sums") -> "Sums":
        """Sum over what either sums over."""
        top = torch.maximum(self.top, other.top)
        return Sums(self.relative_to(top) + other.relative_to(top), top)


def no_sums(like: Sums, count: int) -> Sums:
    """Return the sums over no frames, for a number of chunks."""
    batch, _, heads = like.top.shape[:3]
    return Sums(
        like.sums.new_zeros(batch, count, heads, *like.sums.shape[3:]),
        like.top.new_full((batch, count, *like.top.shape[2:]), NO_KEY),
    )


def join(first: Sums, second: Sums) -> Sums:
    """Put chunks after one another."""
    return Sums(*(torch.cat(pair, dim=1) for pair in zip(first, second, strict=True)))


def weigh_chunks(
    key: torch.Tensor,
    value: torch.Tensor,
    padding: torch.Tensor | None,
    heads: int,
    chunks: Chunks,
) -> Sums:
    """Return exp(k) v and exp(k) of the frames of each chunk.

    Args:
        key: (B, T, K), any floating-point dtype.
        value: (B, T, D); D is a multiple of K.
        padding: (B, T, 1), true on padding; None if there is none.
        heads: Number of heads H that channels are split into.
        chunks: How time is cut.
    """
    batch = key.size(0)
    key, value = chunks.cut(key), chunks.cut(value)
    padding = None if padding is None else chunks.cut(padding)
    top = greatest_key(key, padding)
    frames = weigh_values(key, value, top, padding, heads)  # (B * N, H, C, V + K)
    top = top.view(batch, -1, heads, key.size(2) // heads)
    return Sums(frames.unflatten(0, (batch, -1)), top)


def total(frames: Sums) -> Sums:
    """Sum over the frames of each chunk."""
    return Sums(frames.sums.sum(3), frames.top)


def sum_of_last(chunks: Sums, count: int) -> Sums:
    """Sum each chunk and the ``count - 1`` before it, as far as there are any.

    In log2(count) steps: sums over 1, 2, 4, ... chunks, and of these what adds up to
    the count. Nothing is subtracted, so nothing cancels, and a chunk whose keys are far
    above those of others leaves the sums without it as they are.
    """

    def later(x: Sums, by: int) -> Sums:
        return join(no_sums(x, by), x.part(0, x.top.size(1) - by))

    count = min(count, chunks.top.size(1))
    power, length = chunks, 1  # Sums over that many chunks.
    result, covered = None, 0
    while True:
        if count & length:
            part = later(power, covered) if covered else power
            result = part if result is None else result.plus(part)
            covered += length
        if result is not None and covered == count:
            return result
        power = power.plus(later(power, length))
        length *= 2


def sum_of_earlier(own: Sums, gap: int, chunks: Chunks) -> Sums | None:
    """Sum over the chunks that a frame sees, but for its own and the ``gap`` before.

    Takes and leaves a state of (B, 1, ...), or with ``num_left`` of one entry a chunk.

    Args:
        own: Sums over each chunk, of which the first ``gap`` were in calls before.
        gap: Chunks before its own that are not summed.
        chunks: How time is cut.

    Returns:
        One entry for each chunk of this call; None if a frame sees no others.
    """
    count = own.top.size(1) - gap
    is_bounded = chunks.num_left is not None
    width = 1 if chunks.num_left is None else chunks.num_left - gap
    if width == 0:
        return None
    entries = join(Sums(*chunks.state(*no_sums(own, width))), own)
    running = sum_of_last(entries, width if is_bounded else entries.top.size(1))
    chunks.remember(*(entries if is_bounded else running).part(count, width))
    return running.part(width - 1, count)


def sum_over_chunks(frames: Sums, chunks: Chunks) -> torch.Tensor:
    """Sum over what the frames of each chunk see, (B, N, H, 1, V + K)."""
    own = total(frames)
    earlier = sum_of_earlier(own, 0, chunks)
    return (own if earlier is None else own.plus(earlier)).sums.unsqueeze(3)


def sum_over_chunks_by_offsets(
    bias: torch.Tensor, frames: Sums, chunks: Chunks
) -> torch.Tensor:
    """Sum over what each frame sees with weights exp(bias).

    The chunks that the bias reaches are summed frame by frame, as one small product
    each, the earlier ones as a whole. Takes and leaves a state of the former beside
    that of :func:`sum_of_earlier`.

    Args:
        bias: (H, 2 * radius + 1), entry j for t' - t = j - radius; zero elsewhere.
        frames: What :func:`weigh_chunks` returns.
        chunks: How time is cut.

    Returns:
        (B, N, H, C, V + K).
    """
    size, count = chunks.size, frames.top.size(1)
    reach = -(-(bias.size(1) // 2) // size)  # Chunks that the bias reaches back.
    if chunks.num_left is not None:
        reach = min(reach, chunks.num_left)
    if reach > 0:
        frames = join(Sums(*chunks.state(*no_sums(frames, reach))), frames)
        chunks.remember(*frames.part(count, reach))
    near, far = exp_bias(_band(bias, size, reach), has_rest=True)
    # Of each chunk, what it contributes to the frames of its own and the next ones.
    near = near.unflatten(-1, (reach + 1, size)).transpose(1, 2).flatten(1, 2)
    out = product(near, frames.sums.flatten(0, 1))
    products = Sums(out.unflatten(0, frames.top.shape[:2]), frames.top)
    parts = [
        Sums(part, products.top).part(reach - back, count)
        for back, part in enumerate(products.sums.split(size, dim=3))
    ]
    earlier = sum_of_earlier(total(frames), reach, chunks)
    if earlier is not None:
        parts.append(Sums(far * earlier.sums.unsqueeze(3), earlier.top))
    top = parts[0].top
    for part in parts[1:]:
        top = torch.maximum(top, part.top)
    return sum(part.relative_to(top) for part in parts)


def _band(bias: torch.Tensor, size: int, reach: int) -> torch.Tensor:
    """Lay out a bias by offset over the frames of a chunk and those that it sees.

    Returns:
        (H, C, (reach + 1) * C): queries, and keys of its own chunk, of the one before
        it, and so on.
    """
    radius = bias.size(1) // 2
    frame = torch.arange(size, device=bias.device)
    back = torch.arange(reach + 1, device=bias.device)
    key = (frame - size * back[:, None]).flatten()
    offset = key - frame[:, None]
    band = bias[:, (offset + radius).clamp(0, 2 * radius)]
    return band.masked_fill(offset.abs() > radius, 0.0)


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
