"""Sums over time with weights exp(k + w), and their gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_fastformer.layers import weighted_sum as module
from espnet_fastformer.layers.weighted_sum import (
    NO_KEY,
    Blocks,
    divide,
    greatest_key,
    key_weights,
    sum_by_filter,
    weigh_values,
    weighted_sum,
    weighted_sum_by_pieces,
)

# One block, two, and several with a last one that is not full.
FRAMES = [1, 50, 128, 129, 200, 333]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def surrounded(x: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 0, *blocks.around))


def by_definition(bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sum over all pairs of frames with weights exp(w) of each head."""
    radius = bias.size(1) // 2
    time = torch.arange(x.size(2))
    offset = time - time[:, None]
    w = bias[:, (offset + radius).clamp(0, 2 * radius)]
    return torch.exp(w.masked_fill(offset.abs() > radius, 0.0)) @ x


def normalized(x: torch.Tensor) -> torch.Tensor:
    """Without the factor a query, by the last channel, which is positive."""
    return x[..., :-1] / x[..., -1:]


def draw_sums(batch: int, heads: int, frames: int) -> torch.Tensor:
    return torch.cat(
        [draw(batch, heads, frames, 2), draw(batch, heads, frames, 1).exp()], -1
    )


@pytest.mark.parametrize("radius", [0, 3, 64, 100])
@pytest.mark.parametrize("frames", FRAMES)
def test_windows_equal_all_pairs(frames, radius):
    torch.manual_seed(0)
    bias, x = draw(2, 2 * radius + 1), draw_sums(2, 2, frames)
    expected = normalized(by_definition(bias, x))
    blocks = Blocks(frames, radius)
    sums, band = surrounded(x, blocks), blocks.band_of_offsets(bias)
    torch.testing.assert_close(normalized(weighted_sum(band, sums, blocks)), expected)
    torch.testing.assert_close(normalized(sum_by_filter(bias, x)), expected)


@settings(deadline=None, max_examples=50)
@given(
    batch=st.integers(1, 3),
    frames=st.integers(1, 400),
    radius=st.integers(0, 150),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_cut_equals_none(batch, frames, radius, seed):
    torch.manual_seed(seed)
    bias, x = draw(2, 2 * radius + 1), draw_sums(batch, 2, frames)
    whole, blocks = Blocks(frames, frames), Blocks(frames, radius)
    expected = weighted_sum(whole.band_of_offsets(bias), x, whole)
    actual = weighted_sum(blocks.band_of_offsets(bias), surrounded(x, blocks), blocks)
    torch.testing.assert_close(normalized(actual), normalized(expected))


@pytest.mark.parametrize("radius", [5, 80])
def test_bias_of_factors_is_that_of_all_pairs(radius):
    torch.manual_seed(0)
    frames = 300
    query, key, x = draw(frames, 4), draw(frames, 4), draw_sums(2, 1, frames)
    whole, blocks = Blocks(frames, frames), Blocks(frames, radius)
    full = (query @ key.T).tril(radius).triu(-radius)
    expected = weighted_sum(full[None, None], x, whole)
    band = blocks.band_of_factors(query, key, radius)
    actual = weighted_sum(band, surrounded(x, blocks), blocks)
    torch.testing.assert_close(normalized(actual), normalized(expected))


@pytest.mark.parametrize("kind", ["offsets", "factors"])
def test_pieces_equal_the_whole(kind, monkeypatch):
    monkeypatch.setattr(module, "FRAMES_AT_ONCE", 150)
    torch.manual_seed(0)
    frames, radius = 1001, 20
    blocks = Blocks(frames, radius)
    if kind == "offsets":
        band = blocks.band_of_offsets(draw(2, 2 * radius + 1))
    else:
        band = blocks.band_of_factors(draw(frames, 3), draw(frames, 3), radius)
    sums = surrounded(draw_sums(2, len(band), frames), blocks)
    pieces = list(weighted_sum_by_pieces(band, sums, blocks))
    assert max(piece.size(2) for piece in pieces) == 128
    torch.testing.assert_close(torch.cat(pieces, 2), weighted_sum(band, sums, blocks))


@pytest.mark.parametrize("count", [1, 3])
def test_join_surrounds_with_zeros(count):
    blocks = Blocks(300, 7)
    x = draw(2, 3, 300, 4)
    joined = blocks.join(x.chunk(count, dim=2))
    torch.testing.assert_close(joined, surrounded(x, blocks), rtol=0, atol=0)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("frames", [7, 150])
def test_gradients_of_windows(frames, heads):
    torch.manual_seed(0)
    blocks = Blocks(frames, 3)
    bias = draw(heads, 7).requires_grad_()
    sums = surrounded(draw_sums(2, heads, frames), blocks).requires_grad_()

    def average(bias, sums):
        band = blocks.band_of_offsets(bias)
        return normalized(weighted_sum(band, sums, blocks))

    assert torch.autograd.gradcheck(average, (bias, sums), fast_mode=True)


@pytest.mark.parametrize("has_padding", [False, True])
@pytest.mark.parametrize("heads, keys", [(1, 6), (2, 2), (3, 6)])
def test_gradients_of_weighing_and_division(heads, keys, has_padding):
    torch.manual_seed(0)
    blocks = Blocks(140, 3)
    key = draw(2, 140, keys).requires_grad_()
    value = draw(2, 140, 6).requires_grad_()
    padding = None
    if has_padding:
        padding = torch.arange(140)[:, None] >= torch.tensor([140, 90])[:, None, None]

    def average(key, value):
        top = greatest_key(key, padding)
        sums = weigh_values(key, value, top, padding, heads, blocks)
        return divide(sums.cumsum(2), 6 // heads)

    assert torch.autograd.gradcheck(average, (key, value), fast_mode=True)


def test_padding_weighs_nothing():
    key, value = torch.full((1, 3, 2), 1000.0), torch.ones(1, 3, 2)
    key[0, 0] = 1.0
    padding = torch.tensor([[[False], [True], [True]]])
    top = greatest_key(key, padding)
    assert top.tolist() == [[[1.0, 1.0]]]
    sums = weigh_values(key, value, top, padding)
    assert sums.isfinite().all()
    assert sums[0, 0, 0].all()
    assert not sums[0, 0, 1:].any()
    assert not key_weights(key, top, padding)[0, 1:].any()


def test_padding_alone_pools_to_zero():
    key = torch.randn(1, 3, 2)
    padding = torch.ones(1, 3, 1, dtype=torch.bool)
    top = greatest_key(key, padding)
    assert (top == NO_KEY).all()
    sums = weigh_values(key, torch.randn(1, 3, 2), top, padding)
    assert not divide(sums, 2).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_summed_in_float32(dtype):
    torch.manual_seed(0)
    key, value = torch.randn(2, 2, 300, 4).to(dtype).unbind()
    sums = weigh_values(key, value, greatest_key(key, None))
    exact = weigh_values(key.double(), value.double(), greatest_key(key.double(), None))
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=0)
