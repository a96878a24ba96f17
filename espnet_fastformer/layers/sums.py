"""Sums over time with weights exp(k + w), which the mixers are made of.

Values weighted by their keys, and these weights themselves, lie side by side in one
tensor, as both are summed alike; in the end the first sum is divided by the second.

Time is cut into chunks. What a frame sees is summed in two steps: over each chunk by
itself, for all chunks at once, and over chunks. A whole utterance, one in chunks, and a
stream take the same steps, and differ in which chunks a frame sees: all of them, or the
earlier ones and its own, some of which were in calls before.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from espnet_fastformer.layers import pieces
from espnet_fastformer.layers.chunks import Chunks
from espnet_fastformer.layers.modes import gradient, is_traced

# exp(k) and exp(w) meet only in a matrix product, so each is shifted by its own
# maximum. If the largest sum k + w of a query lies far below max(k) + max(w), the
# product of two factors in [0, 1] underflows though its share is large. Factors around
# exp(30) instead keep float32 exact for k and w that span 100 each, and leave a factor
# of 1e12 for the values and the number of frames. Then no denominator is below
# exp(2 * 30 - 100); the bound keeps gradients finite beyond that.
_CENTRE = 30.0
_LEAST_DENOMINATOR = 1e-19
# The maximum over no keys: far below any, but finite, as differences of it are taken.
NO_KEY = -1e30

# Frames of a chunk of a whole utterance, unless a bias reaches further.
_CHUNK = 32


class Sums(NamedTuple):
    """Sums of exp(k) v and of exp(k), up to a factor exp(top) each.

    Attributes:
        sums: Of N chunks (B, H, N, V + K), or of their frames (B, H, N, C, V + K), in
            float32 or float64.
        top: Greatest key of each chunk (B, H, N, K), or of all of them (B, H, 1, K).
    """

    sums: torch.Tensor
    top: torch.Tensor

    def part(self, first: int, count: int) -> "Sums":
        """Return those of some chunks."""
        is_shared = self.top.size(2) != self.sums.size(2)
        top = self.top if is_shared else self.top.narrow(2, first, count)
        return Sums(self.sums.narrow(2, first, count), top)

    def relative_to(self, top: torch.Tensor) -> torch.Tensor:
        """Return the sums up to a factor of ``exp(top)``, which is no less."""
        if top is self.top:
            return self.sums
        factor = torch.exp(self.top - top).unsqueeze(-2)
        if self.sums.dim() > self.top.dim():
            factor = factor.unsqueeze(3)
        sums = self.sums.unflatten(-1, (-1, self.top.size(-1)))
        return (sums * factor).flatten(-2)

    def plus(self, other: "Sums") -> "Sums":
        """Sum over what either sums over."""
        top = self.top
        if other.top is not top:
            top = torch.maximum(top, other.top)
        return Sums(self.relative_to(top) + other.relative_to(top), top)


def join(first: Sums, second: Sums) -> Sums:
    """Put chunks after one another."""
    return Sums(*(torch.cat(pair, dim=2) for pair in zip(first, second, strict=True)))


def no_sums(like: Sums, count: int) -> Sums:
    """Return the sums over no frames, for a number of chunks."""
    batch, heads = like.top.shape[:2]
    return Sums(
        like.sums.new_zeros(batch, heads, count, *like.sums.shape[3:]),
        like.top.new_full((batch, heads, count, like.top.size(3)), NO_KEY),
    )


def weigh(
    key: torch.Tensor,
    value: torch.Tensor,
    padding: torch.Tensor | None = None,
    heads: int = 1,
    size: int | None = None,
    around: tuple[int, int] = (0, 0),
) -> Sums:
    """Return exp(k) v and exp(k) of all frames, zero on padding.

    Args:
        key: (B, T, K), any floating-point dtype.
        value: (B, T, D); D is a multiple of K.
        padding: (B, T, 1), true on padding; None if there is none.
        heads: Number of heads H that channels are split into.
        size: Frames of a chunk C, which divides T; None for one chunk.
        around: Frames of zeros that are added before and after.

    Returns:
        Of frames, (B, H, N, C, D / H + K / H).
    """
    key, value = (cut(x, heads, size) for x in (key, value))
    padding = None if padding is None else cut(padding, 1, size)
    top = greatest_key(key, padding)
    if is_traced():
        weights = key_weights(key, top, padding)
        sums = torch.cat([weights * value, weights], dim=-1)
        return Sums(F.pad(sums, (0, 0, *around)), top.squeeze(3))
    return Sums(_Weigh.apply(key, value, top, padding, *around), top.squeeze(3))


def cut(x: torch.Tensor, heads: int, size: int | None) -> torch.Tensor:
    """View (B, T, D) as (B, H, N, C, D / H)."""
    x = x.unsqueeze(1) if size is None else x.unflatten(1, (-1, size))
    return x.unflatten(3, (heads, -1)).permute(0, 3, 1, 2, 4)


def greatest_key(key: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """Return the maximum over time, or ``NO_KEY`` where all is padding.

    It cancels in what is divided in the end, so it gets no gradient.

    Args:
        key: (..., T, K), any floating-point dtype.
        padding: (..., T, 1), true on padding; None if there is none.

    Returns:
        (..., 1, K) in at least float32.
    """
    key = key.detach()
    dtype = torch.promote_types(key.dtype, torch.float32)
    if padding is None:
        return key.amax(-2, keepdim=True).to(dtype)
    top = key.masked_fill(padding, -torch.inf).amax(-2, keepdim=True).to(dtype)
    return top.clamp(min=NO_KEY)


def key_weights(
    key: torch.Tensor, top: torch.Tensor, padding: torch.Tensor | None
) -> torch.Tensor:
    """Return exp(k - max k + a constant), zero on padding.

    Args:
        key: (..., T, K).
        top: The maximum (..., 1, K).
        padding: (..., T, 1), true on padding; None if there is none.

    Returns:
        (..., T, K) in the dtype of ``top``.
    """
    key = key - (top - _CENTRE)
    return torch.exp(key if padding is None else key.masked_fill(padding, -torch.inf))


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
        return join(no_sums(x, by), x.part(0, x.sums.size(2) - by))

    count = min(count, chunks.sums.size(2))
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

    Takes and leaves a state of one entry, or with ``num_left`` of one a chunk.

    Args:
        own: Sums over each chunk, of which the first ``gap`` were in calls before.
        gap: Chunks before its own that are not summed.
        chunks: How time is cut.

    Returns:
        One entry for each chunk of this call; None if a frame sees no others.
    """
    count = own.sums.size(2) - gap
    is_bounded = chunks.num_left is not None
    width = 1 if chunks.num_left is None else chunks.num_left - gap
    if width == 0:
        return None
    entries = join(Sums(*chunks.state(*no_sums(own, width))), own)
    running = sum_of_last(entries, width if is_bounded else entries.sums.size(2))
    chunks.remember(*(entries if is_bounded else running).part(count, width))
    return running.part(width - 1, count)


def sum_over_chunks(own: Sums, chunks: Chunks | None) -> torch.Tensor:
    """Sum over what the frames of each chunk see, (B, H, N, 1, V + K).

    Args:
        own: Sums over each chunk.
        chunks: How time is cut; None for one chunk.
    """
    earlier = None if chunks is None else sum_of_earlier(own, 0, chunks)
    return (own if earlier is None else own.plus(earlier)).sums.unsqueeze(3)


def sum_by_offsets(bias: torch.Tensor, frames: Sums, chunks: Chunks) -> torch.Tensor:
    """Sum over what each frame sees with weights exp(bias), in chunks.

    Takes and leaves a state of the frames that the bias reaches, beside that of
    :func:`sum_of_earlier`.

    Args:
        bias: (H, 2 * radius + 1), entry j for t' - t = j - radius; zero elsewhere.
        frames: What is summed.
        chunks: How time is cut.

    Returns:
        (B, H, N, C, V + K).
    """
    count = frames.sums.size(2)
    reach = -(-(bias.size(1) // 2) // chunks.size)  # Chunks that the bias reaches back.
    if chunks.num_left is not None:
        reach = min(reach, chunks.num_left)
    if reach > 0:
        frames = join(Sums(*chunks.state(*no_sums(frames, reach))), frames)
        chunks.remember(*frames.part(count, reach))
    rest = sum_of_earlier(total(frames), reach, chunks)
    near, far = exp_bias(band_of_offsets(bias, chunks.size, reach))
    return sum_near(near.unsqueeze(1), far.unsqueeze(1), frames, rest)


class WholeUtterance:
    """A whole utterance in chunks that a bias reaches no further than the next of.

    Args:
        frames: Number of frames T.
        radius: Number of frames on each side of a query with a bias of their own.

    Attributes:
        size: Frames of a chunk C.
        around: Frames of zeros before and after: those that fill up the last chunk,
            and one chunk on each side.
    """

    def __init__(self, frames: int, radius: int):
        self.frames = frames
        self.size = max(radius, _CHUNK)
        self.around = self.size, self.size + -frames % self.size

    def sum_by_offsets(
        self, bias: torch.Tensor, frames: Sums
    ) -> Iterator[torch.Tensor]:
        """Do as :func:`sum_by_offsets` with all frames in sight.

        Args:
            bias: (H, 2 * radius + 1).
            frames: (B, H, 1, T + around, V + K).

        Yields:
            (B, H, some of N, C, V + K) in order.
        """
        band = band_of_offsets(bias, self.size, before=1, after=1)
        yield from self._sum(band.unsqueeze(1), frames)

    def sum_by_factors(
        self, query: torch.Tensor, key: torch.Tensor, radius: int, frames: Sums
    ) -> Iterator[torch.Tensor]:
        """Do as :meth:`sum_by_offsets` with the bias u_t . v_t'.

        Args:
            query: u (T, rank).
            key: v (T, rank).
            radius: Number of frames on each side of a query that have a bias.
            frames: As there.
        """
        before, after = self.around
        query = F.pad(query, (0, 0, 0, after - before)).unflatten(0, (-1, self.size))
        key = F.pad(key, (0, 0, before, after)).unfold(0, 3 * self.size, self.size)
        ones = query.new_ones(1, 2 * radius + 1)
        is_near = band_of_offsets(ones, self.size, before=1, after=1)
        yield from self._sum((torch.matmul(query, key) * is_near).unsqueeze(0), frames)

    def _sum(self, band: torch.Tensor, frames: Sums) -> Iterator[torch.Tensor]:
        sums = frames.sums.squeeze(2).unflatten(2, (-1, self.size))
        frames = Sums(sums, frames.top)
        near, far = exp_bias(band)
        rest = _sum_of_others(total(frames))
        if not pieces.is_long(self.frames):
            yield sum_near(near, far, frames, rest)
            return
        count = rest.sums.size(2)
        at_once = max(1, pieces.FRAMES_AT_ONCE // self.size)
        for first in range(0, count, at_once):
            some = min(at_once, count - first)
            weights = near, far
            if near.size(1) > 1:
                weights = near.narrow(1, first, some), far.narrow(1, first, some)
            part = frames.part(first, some + 2)
            yield sum_near(*weights, part, rest.part(first, some))


def sum_by_filter(bias: torch.Tensor, frames: Sums) -> torch.Tensor:
    """Do as :meth:`WholeUtterance.sum_by_offsets` in one form for all lengths.

    For exporters, which would make a graph for some lengths of chunks: a convolution,
    and the sums of all before and after it.

    Args:
        bias: (H, 2 * radius + 1).
        frames: (B, H, 1, T, V + K).

    Returns:
        (B, H, 1, T, V + K).
    """
    sums = frames.sums.squeeze(2)
    length, radius = sums.size(2), bias.size(1) // 2
    near, far = exp_bias(bias)
    rows = sums.permute(0, 3, 1, 2).flatten(0, 1)  # (B * (V + K), H, T)
    rows = F.conv1d(rows, near.unsqueeze(1), padding=radius, groups=bias.size(0))
    out = rows.unflatten(0, (-1, sums.size(3))).permute(0, 2, 3, 1)
    gap = (0, 0, radius + 1, 0)
    before = F.pad(sums.cumsum(2), gap)[:, :, :length]
    after = F.pad(sums.flip(2).cumsum(2), gap)[:, :, :length].flip(2)
    return (out + far.unsqueeze(1) * (before + after)).unsqueeze(2)


def _sum_of_others(own: Sums) -> Sums:
    """Sum over all chunks but one and its neighbours, of N + 2 for N."""
    count = own.sums.size(2) - 2
    sums = F.pad(own.sums, (0, 0, 1, 1))
    before = sums.cumsum(2).narrow(2, 0, count)
    after = sums.flip(2).cumsum(2).narrow(2, 0, count).flip(2)
    return Sums(before + after, own.top)


def sum_near(
    near: torch.Tensor, far: torch.Tensor, frames: Sums, rest: Sums | None
) -> torch.Tensor:
    """Sum over near frames, each with its weight, and over the rest with one weight.

    Adding both, instead of correcting the sum over all keys by (exp(w) - 1), leaves no
    cancellation: every term of a denominator is positive.

    Args:
        near: Weights of the queries of each chunk for the frames of R chunks around,
            (H, N or 1, C, R * C).
        far: Weight of the rest, (H, N or 1, C, 1).
        frames: (B, H, N + R - 1, C, V + K).
        rest: Sums over chunks for each of N; None if there is no rest.

    Returns:
        (B, H, N, C, V + K).
    """
    seen = overlapping(frames, near.size(3) // near.size(2))
    out = Sums(product(near, seen.sums), seen.top)
    if rest is None:
        return out.sums
    return out.plus(Sums(far * rest.sums.unsqueeze(3), rest.top)).sums


def overlapping(frames: Sums, count: int) -> Sums:
    """Return the frames of each chunk and of the next ones, ``count`` in all.

    Args:
        frames: (B, H, N + count - 1, C, V + K).
        count: Chunks that each gets.

    Returns:
        (B, H, N, count * C, V + K), as a view where all have one top.
    """
    if count == 1:
        return frames
    size = frames.sums.size(3)
    sums = frames.sums.flatten(2, 3).unfold(2, count * size, size).mT
    if frames.top.size(2) == 1:
        return Sums(sums, frames.top)
    tops = frames.top.unfold(2, count, 1).mT  # (B, H, N, count, K)
    top = tops.amax(3)
    each = Sums(sums.unflatten(3, (count, size)).flatten(2, 3), tops.flatten(2, 3))
    sums = each.relative_to(top.repeat_interleave(count, dim=2))
    return Sums(sums.unflatten(2, (-1, count)).flatten(3, 4), top)


def band_of_offsets(
    bias: torch.Tensor, size: int, before: int = 0, after: int = 0
) -> torch.Tensor:
    """Lay out a bias by offset over the queries of a chunk and the keys around.

    Args:
        bias: (H, 2 * radius + 1), entry j for t' - t = j - radius.
        size: Frames of a chunk C.
        before: Chunks of keys before the queries'.
        after: Chunks of keys after the queries'.

    Returns:
        (H, C, (before + 1 + after) * C), zero outside the band.
    """
    radius = bias.size(1) // 2
    # Of all queries, the last one's first key has the lowest offset.
    lowest, highest = (before + 1) * size - 1, (after + 1) * size - 1
    taps = F.pad(bias, (lowest - radius, highest - radius))  # Cut off if it is wider.
    return taps.unfold(1, (before + 1 + after) * size, 1).flip(1)


def exp_bias(
    bias: torch.Tensor, has_rest: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return exp(w - max w + a constant) for each query.

    Args:
        bias: w (..., queries, keys).
        has_rest: Whether there are further keys, of bias zero.

    Returns:
        The weights (..., queries, keys), and that of further keys (..., queries, 1).
    """
    top = bias.detach().amax(-1, keepdim=True)
    if has_rest:
        top = top.clamp(min=0.0)
    shift = _CENTRE - top
    return torch.exp(bias + shift), torch.exp(shift)


def product(weights: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    """Sum frames by weights, whose gradients no autocast rounds.

    Args:
        weights: (H, N or 1, I, J), with H = 1 if there are N.
        frames: (B, H, N, J, V + K).

    Returns:
        (B, H, N, I, V + K).
    """
    return (_product if is_traced() else _Product.apply)(weights, frames)


def _product(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    # Not by einsum, which looks whether N is 1: a graph would not hold for others.
    batch, _, count, _, channels = x.shape
    if weights.size(1) == 1:
        out = torch.bmm(weights.squeeze(1), x.permute(1, 3, 0, 2, 4).flatten(2))
        out = out.unflatten(2, (batch, count, channels))
        return out.permute(2, 0, 3, 1, 4)
    out = torch.bmm(weights.squeeze(0), x.squeeze(1).permute(1, 2, 0, 3).flatten(2))
    return out.unflatten(2, (batch, channels)).permute(2, 0, 1, 3).unsqueeze(1)


def divide(sums: torch.Tensor, value_size: int) -> torch.Tensor:
    """Divide the sum of values by that of weights, with zero where nothing was summed.

    Args:
        sums: (B, H, N, C, V + K).
        value_size: V.

    Returns:
        (B, N * C, H * V).
    """
    sums = sums.permute(0, 2, 3, 1, 4)
    if is_traced():
        value, weight = sums[..., :value_size], sums[..., value_size:]
        out = value / weight.clamp(min=_LEAST_DENOMINATOR)
    else:
        out = _Divide.apply(sums, value_size)
    return out.flatten(3).flatten(1, 2)


# Gradients that keep less in memory than what torch derives, and start fewer kernels: a
# layer of AFT-conv keeps three quarters for the backward pass, as tests/layers/
# test_sums.py shows, and one of AFT-simple takes fewer kernels there.


class _Weigh(torch.autograd.Function):
    """See :func:`weigh`."""

    @staticmethod
    def forward(ctx, key, value, top, padding, before, after):
        """Weigh (B, H, N, C, V) by keys (B, H, N, C, K)."""
        frames, value_size = value.shape[3:]
        sums = top.new_empty(
            *value.shape[:3], before + frames + after, value_size + key.size(4)
        )
        if before + after > 0:
            sums[:, :, :, :before].zero_()
            sums[:, :, :, before + frames :].zero_()
        real = sums.narrow(3, before, frames)
        weights = real[..., value_size:]
        torch.sub(key, top - _CENTRE, out=weights).exp_()
        if padding is not None:
            weights.masked_fill_(padding, 0.0)
        torch.mul(weights, value, out=real[..., :value_size])
        ctx.save_for_backward(sums)
        ctx.real = before, frames
        ctx.value_size = value_size
        ctx.dtypes = key.dtype, value.dtype
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """Return the gradients of key and value."""
        (sums,) = ctx.saved_tensors
        key_dtype, value_dtype = ctx.dtypes
        grad, sums = (x.narrow(3, *ctx.real) for x in (grad, sums))
        weights = sums[..., ctx.value_size :]
        grad_of_weights = grad[..., ctx.value_size :]
        grad = grad[..., : ctx.value_size]
        # The derivative of what is summed by its key is itself.
        grad_key = grad * sums[..., : ctx.value_size]
        if weights.size(4) == 1:
            grad_key = grad_key.sum(-1, keepdim=True)
        grad_key.addcmul_(grad_of_weights, weights)
        grads = grad_key.to(key_dtype), (grad * weights).to(value_dtype)
        return *grads, None, None, None, None


class _Product(torch.autograd.Function):
    """See :func:`product`."""

    @staticmethod
    def forward(ctx, weights, x):
        """Multiply."""
        ctx.save_for_backward(weights, x)
        return _product(weights, x)

    @staticmethod
    @gradient
    def backward(ctx, grad):
        """Return the gradients of weights and x."""
        weights, x = ctx.saved_tensors
        names, dim = ("hij", 1) if weights.size(1) == 1 else ("nij", 0)
        grad_weights = grad_x = None
        if ctx.needs_input_grad[0]:
            grad_weights = torch.einsum(f"bhnic,bhnjc->{names}", grad, x).unsqueeze(dim)
        if ctx.needs_input_grad[1]:
            weights = weights.squeeze(dim)
            grad_x = torch.einsum(f"{names},bhnic->bhnjc", weights, grad)
        return grad_weights, grad_x


class _Divide(torch.autograd.Function):
    """See :func:`divide`."""

    @staticmethod
    def forward(ctx, sums, value_size):
        """Divide the first channels of (..., V + K) by the others."""
        weight = sums[..., value_size:].clamp(min=_LEAST_DENOMINATOR)
        out = sums.new_empty(*sums.shape[:-1], value_size)
        torch.div(sums[..., :value_size], weight, out=out)
        ctx.save_for_backward(out, weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """Return the gradient of sums."""
        out, weight = ctx.saved_tensors
        value_size = out.size(-1)
        grad_sums = out.new_empty(*out.shape[:-1], value_size + weight.size(-1))
        grad_value = torch.div(grad, weight, out=grad_sums[..., :value_size])
        grad_weight = grad_value * out
        if weight.size(-1) == 1:
            grad_weight = grad_weight.sum(-1, keepdim=True)
        grad_weight.masked_fill_(weight <= _LEAST_DENOMINATOR, 0.0)
        torch.neg(grad_weight, out=grad_sums[..., value_size:])
        return grad_sums, None
