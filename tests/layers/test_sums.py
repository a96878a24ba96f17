"""Sums over time with weights exp(k + w), and their gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from espnet_fastformer.layers import pieces, sums
from espnet_fastformer.layers.aft import AFTConv
from espnet_fastformer.layers.sums import (
    NO_KEY,
    Sums,
    WholeUtterance,
    divide,
    greatest_key,
    key_weights,
    sum_by_filter,
    sum_of_last,
    total,
    weigh,
)

# One chunk, two, and several with a last one that is not full.
FRAMES = [1, 31, 32, 33, 64, 100, 333]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def draw_frames(batch: int, heads: int, frames: int) -> torch.Tensor:
    positive = draw(batch, heads, 1, frames, 1).exp()
    return torch.cat([draw(batch, heads, 1, frames, 2), positive], -1)


def by_definition(bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sum over all pairs of frames with weights exp(w) of each head (H, T, T)."""
    return torch.exp(bias).unsqueeze(1) @ x


def matrix(bias: torch.Tensor, frames: int) -> torch.Tensor:
    radius = bias.size(1) // 2
    time = torch.arange(frames)
    offset = time - time[:, None]
    w = bias[:, (offset + radius).clamp(0, 2 * radius)]
    return w.masked_fill(offset.abs() > radius, 0.0)


def normalized(x: torch.Tensor) -> torch.Tensor:
    """Without the factor a query, by the last channel, which is positive."""
    return x[..., :-1] / x[..., -1:]


def surrounded(x: torch.Tensor, whole: WholeUtterance) -> Sums:
    return Sums(F.pad(x, (0, 0, *whole.around)), x.new_zeros(*x.shape[:3], 1))


def joined(parts, frames: int) -> torch.Tensor:
    """What is summed for all frames, (B, H, 1, T, C)."""
    return torch.cat([part.flatten(2, 3) for part in parts], 2)[:, :, None, :frames]


def sum_by_offsets(bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    frames = x.size(3)
    whole = WholeUtterance(frames, bias.size(1) // 2)
    return joined(whole.sum_by_offsets(bias, surrounded(x, whole)), frames)


@pytest.mark.parametrize("radius", [0, 3, 32, 100])
@pytest.mark.parametrize("frames", FRAMES)
def test_bias_of_offsets_is_that_of_all_pairs(frames, radius):
    torch.manual_seed(0)
    bias, x = draw(2, 2 * radius + 1), draw_frames(2, 2, frames)
    expected = by_definition(matrix(bias, frames), x)
    for actual in (sum_by_offsets(bias, x), sum_by_filter(bias, Sums(x, x))):
        torch.testing.assert_close(normalized(actual), normalized(expected))


@settings(deadline=None, max_examples=50)
@given(
    batch=st.integers(1, 3),
    frames=st.integers(1, 400),
    radius=st.integers(0, 150),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_length_and_radius(batch, frames, radius, seed):
    torch.manual_seed(seed)
    bias, x = draw(2, 2 * radius + 1), draw_frames(batch, 2, frames)
    expected = by_definition(matrix(bias, frames), x)
    actual = sum_by_offsets(bias, x)
    torch.testing.assert_close(normalized(actual), normalized(expected))


@pytest.mark.parametrize("radius", [5, 80])
@pytest.mark.parametrize("frames", FRAMES)
def test_bias_of_factors_is_that_of_all_pairs(frames, radius):
    torch.manual_seed(0)
    query, key, x = draw(frames, 4), draw(frames, 4), draw_frames(2, 1, frames)
    bias = (query @ key.T).tril(radius).triu(-radius)
    whole = WholeUtterance(frames, radius)
    parts = whole.sum_by_factors(query, key, radius, surrounded(x, whole))
    expected = by_definition(bias[None], x)
    torch.testing.assert_close(normalized(joined(parts, frames)), normalized(expected))


@pytest.mark.parametrize("kind", ["offsets", "factors"])
def test_pieces_equal_the_whole(kind, monkeypatch):
    torch.manual_seed(0)
    frames, radius = 1001, 20
    whole = WholeUtterance(frames, radius)
    if kind == "offsets":
        arguments = (draw(2, 2 * radius + 1),)
        sum_over_keys = whole.sum_by_offsets
    else:
        arguments = (draw(frames, 3), draw(frames, 3), radius)
        sum_over_keys = whole.sum_by_factors
    sums = surrounded(draw_frames(2, 2 if kind == "offsets" else 1, frames), whole)
    with torch.no_grad():
        (expected,) = sum_over_keys(*arguments, sums)
        monkeypatch.setattr(pieces, "FRAMES_AT_ONCE", 150)
        parts = list(sum_over_keys(*arguments, sums))
    assert max(part.size(2) * part.size(3) for part in parts) == 128
    torch.testing.assert_close(torch.cat(parts, 2), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 20])
def test_sum_of_last(count):
    torch.manual_seed(0)
    own = Sums(draw(2, 3, 9, 3), draw(2, 3, 9, 1) * 50)
    actual = sum_of_last(own, count)
    scaled = own.sums * own.top.exp()
    expected = torch.stack(
        [scaled[:, :, max(0, n + 1 - count) : n + 1].sum(2) for n in range(9)], 2
    )
    torch.testing.assert_close(actual.sums * actual.top.exp(), expected)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("frames", [7, 100])
def test_gradients_of_near_frames(frames, heads):
    torch.manual_seed(0)
    bias = draw(heads, 7).requires_grad_()
    x = draw_frames(2, heads, frames).requires_grad_()

    def average(bias, x):
        return normalized(sum_by_offsets(bias, x))

    assert torch.autograd.gradcheck(average, (bias, x), fast_mode=True)


@pytest.mark.parametrize("size", [None, 20])
@pytest.mark.parametrize("around", [(0, 0), (3, 5)])
@pytest.mark.parametrize("has_padding", [False, True])
@pytest.mark.parametrize("heads, keys", [(1, 6), (2, 2), (3, 6)])
def test_gradients_of_weighing_and_division(heads, keys, has_padding, around, size):
    torch.manual_seed(0)
    key = draw(2, 140, keys).requires_grad_()
    value = draw(2, 140, 6).requires_grad_()
    padding = None
    if has_padding:
        padding = torch.arange(140)[:, None] >= torch.tensor([140, 90])[:, None, None]

    def average(key, value):
        sums = weigh(key, value, padding, heads, size, around).sums
        return divide(sums.cumsum(3), 6 // heads)

    assert torch.autograd.gradcheck(average, (key, value), fast_mode=True)


def test_own_gradients_keep_less(monkeypatch):
    """What a layer of AFT-conv keeps for the backward pass, against torch's own."""
    layer = AFTConv(64)
    x = torch.randn(2, 320, 64, requires_grad=True)

    def kept() -> int:
        storages = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(x, x, x)
        return sum(storages.values())

    own = kept()
    monkeypatch.setattr(sums, "is_traced", lambda: True)
    assert own < 0.75 * kept()


def test_padding_weighs_nothing():
    key, value = torch.full((1, 3, 2), 1000.0), torch.ones(1, 3, 2)
    key[0, 0] = 1.0
    padding = torch.tensor([[[False], [True], [True]]])
    top = greatest_key(key, padding)
    assert top.tolist() == [[[1.0, 1.0]]]
    sums = weigh(key, value, padding).sums[0, 0, 0]
    assert sums.isfinite().all()
    assert sums[0].all()
    assert not sums[1:].any()
    assert not key_weights(key, top, padding)[0, 1:].any()


def test_padding_alone_pools_to_zero():
    padding = torch.ones(1, 3, 1, dtype=torch.bool)
    frames = weigh(torch.randn(1, 3, 2), torch.randn(1, 3, 2), padding)
    assert (frames.top == NO_KEY).all()
    assert not divide(total(frames).sums.unsqueeze(3), 2).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_summed_in_float32(dtype):
    torch.manual_seed(0)
    key, value = torch.randn(2, 2, 300, 4).to(dtype).unbind()
    sums = weigh(key, value).sums
    exact = weigh(key.double(), value.double()).sums
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=0)
