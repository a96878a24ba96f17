"""The plain definitions against numbers, loops and other implementations."""

from math import exp, log, sqrt

import pytest
import torch
from espnet2.asr.layers.fastformer import FastSelfAttention as ESPnetFastSelfAttention
from torch.nn.functional import conv1d

from espnet_fastformer.layers import reference


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_aft_by_hand():
    q = torch.tensor([[[0.0], [log(3)]]], dtype=torch.float64)
    k = torch.tensor([[[0.0], [log(2)]]], dtype=torch.float64)
    v = torch.tensor([[[7.0], [14.0]]], dtype=torch.float64)
    w = torch.tensor([[0.0, log(3)], [log(4), 0.0]], dtype=torch.float64)
    # Weights 1 : 2 * 3 for the first frame and 1 * 4 : 2 for the second.
    expected = [[[1 / 2 * (7 + 6 * 14) / 7], [3 / 4 * (4 * 7 + 2 * 14) / 6]]]
    torch.testing.assert_close(
        reference.aft(q, k, v, w), torch.tensor(expected, dtype=torch.float64)
    )


@pytest.mark.parametrize("heads", [None, 1, 2, 4])
def test_aft_by_loops(heads):
    batch, frames, size = 2, 5, 4
    q, v = random(batch, frames, size), random(batch, frames, size)
    k = random(batch, frames, heads or size)
    w = random(heads, frames, frames) if heads else random(frames, frames)
    lengths = [5, 3]
    mask = torch.arange(frames) < torch.tensor(lengths)[:, None, None]

    expected = torch.empty(batch, frames, size, dtype=torch.float64)
    for b in range(batch):
        for t in range(frames):
            for d in range(size):
                head = d // (size // heads) if heads else d
                table = w[head] if heads else w
                above = below = 0.0
                for s in range(lengths[b]):
                    weight = exp(k[b, s, head] + table[t, s])
                    above += weight * v[b, s, d].item()
                    below += weight
                expected[b, t, d] = sigmoid(q[b, t, d]) * above / below
    torch.testing.assert_close(reference.aft(q, k, v, w, mask), expected)


def test_aft_conv_as_the_paper_writes_it():
    """Convolutions with exp(w) - 1, plus sums over the whole utterance."""
    frames, heads, taps, channels = 11, 3, 5, 2
    q, v = random(1, frames, heads * channels), random(1, frames, heads * channels)
    k, weight = random(1, frames, heads), random(heads, taps)

    def pool(x):  # (H, C, T)
        filters = weight.exp().sub(1).unsqueeze(1).repeat(1, channels, 1)
        filters = filters.view(heads * channels, 1, taps)
        flat = x.reshape(1, heads * channels, frames)
        near = conv1d(flat, filters, padding=taps // 2, groups=heads * channels)
        return near.view_as(x) + x.sum(2, keepdim=True)

    exp_k = k[0].T.exp().unsqueeze(1).expand(heads, channels, frames)
    values = v[0].T.reshape(heads, channels, frames)
    pooled = pool(exp_k * values) / pool(exp_k)
    expected = q.sigmoid() * pooled.reshape(1, heads * channels, frames).mT
    bias = reference.offset_bias(weight, frames)
    torch.testing.assert_close(reference.aft(q, k, v, bias), expected)


def test_aft_without_any_real_frame():
    q, k, v, w = random(2, 3, 4), random(2, 3, 4), random(2, 3, 4), random(3, 3)
    tensors = [x.requires_grad_() for x in (q, k, v, w)]
    mask = torch.tensor([[[1, 1, 0]], [[0, 0, 0]]])
    y = reference.aft(*tensors, mask)
    assert not y[1].any()
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), tensors))


@pytest.mark.parametrize("size", [50.0, 1e4])
def test_aft_of_large_keys(size):
    k = size * torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64).view(1, 3, 1)
    w = size * torch.tensor([[0.0, 0, 0], [-1, -1, 1], [-3, 0, 0]]).double()
    v = torch.tensor([3.0, 6.0, 9.0], dtype=torch.float64).view(1, 3, 1)
    y = reference.aft(torch.zeros_like(k), k, v, w)
    expected = torch.tensor([4.5, 6.0, 6.0], dtype=torch.float64) / 2
    torch.testing.assert_close(y.flatten(), expected)


class Maps(torch.nn.Module):
    def __init__(self, size: int, heads: int):
        super().__init__()
        for name in ("query", "key", "transform"):
            setattr(self, name, torch.nn.Linear(size, size))
        for name in ("query_att", "key_att"):
            setattr(self, name, torch.nn.Linear(size, heads))
        self.double()


def test_fast_self_attention_by_hand():
    layer = Maps(1, 1)
    with torch.no_grad():
        for name, (weight, bias) in {
            "query": (1.0, 0.0),
            "query_att": (1.0, 5.0),
            "key": (2.0, 1.0),
            "key_att": (1.0, -3.0),
            "transform": (1.0, 0.5),
        }.items():
            getattr(layer, name).weight.fill_(weight)
            getattr(layer, name).bias.fill_(bias)
    x = torch.tensor([[[0.0], [log(3)]]], dtype=torch.float64)
    query = 3 / 4 * log(3)
    products = query, (2 * log(3) + 1) * query
    weights = [exp(p) for p in products]
    key = (weights[0] * products[0] + weights[1] * products[1]) / sum(weights)
    expected = [[[0.5], [key * log(3) + 0.5 + log(3)]]]
    torch.testing.assert_close(
        reference.fast_self_attention(layer, x),
        torch.tensor(expected, dtype=torch.float64),
    )


def test_fast_self_attention_by_loops():
    frames, size, heads, real = 4, 6, 3, 3
    width = size // heads
    layer = Maps(size, heads)
    x = random(1, frames, size)
    mask = torch.arange(frames).view(1, 1, -1) < real

    def linear(name: str, row: list[float]) -> list[float]:
        weight, bias = getattr(layer, name).weight, getattr(layer, name).bias
        return [
            sum(w * c for w, c in zip(ws, row, strict=True)) + b
            for ws, b in zip(weight.tolist(), bias.tolist(), strict=True)
        ]

    def pool(rows: list[list[float]], name: str) -> list[float]:
        pooled = [0.0] * size
        scores = [linear(name, row) for row in rows]
        for d in range(size):
            weights = [exp(score[d // width] / sqrt(width)) for score in scores]
            for weight, row in zip(weights, rows, strict=True):
                pooled[d] += weight * row[d] / sum(weights)
        return pooled

    def product(left: list[float], right: list[float]) -> list[float]:
        return [a * b for a, b in zip(left, right, strict=True)]

    q = [linear("query", row) for row in x[0].tolist()]
    k = [linear("key", row) for row in x[0].tolist()]
    query = pool(q[:real], "query_att")
    key = pool([product(row, query) for row in k[:real]], "key_att")
    expected = [
        [
            a + b
            for a, b in zip(linear("transform", product(row, key)), row, strict=True)
        ]
        for row in q
    ]
    torch.testing.assert_close(
        reference.fast_self_attention(layer, x, mask)[0],
        torch.tensor(expected, dtype=torch.float64),
    )


def test_fast_self_attention_equals_espnet():
    layer = ESPnetFastSelfAttention(8, 2, 0.0).double()
    x = random(3, 7, 8)
    mask = torch.arange(7) < torch.tensor([7, 2, 0])[:, None, None]
    torch.testing.assert_close(
        reference.fast_self_attention(layer, x, mask), layer(x, mask)
    )
    torch.testing.assert_close(reference.fast_self_attention(layer, x), layer(x, None))


def test_dense_bias():
    table = torch.tensor([[1, 2], [3, 4]])
    assert reference.dense_bias(table, 1).tolist() == [[1]]
    assert reference.dense_bias(table, 3).tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]


def test_factorized_bias():
    query = torch.tensor([[1, 0], [2, 1]])
    key = torch.tensor([[3, 5], [7, 0]])
    assert reference.factorized_bias(query, key, 2).tolist() == [[3, 7], [11, 14]]
    assert reference.factorized_bias(query, key, 3).tolist() == [
        [3, 7, 0],
        [11, 14, 0],
        [0, 0, 0],
    ]


def test_offset_bias():
    taps = torch.tensor([1, 2, 3])  # for t' - t = -1, 0, 1
    assert reference.offset_bias(taps, 1).tolist() == [[2]]
    expected = [[2, 3, 0, 0], [1, 2, 3, 0], [0, 1, 2, 3], [0, 0, 1, 2]]
    assert reference.offset_bias(taps, 4).tolist() == expected
    heads = reference.offset_bias(torch.stack([taps, 2 * taps]), 4)
    assert heads.tolist() == [
        expected,
        [[2 * entry for entry in row] for row in expected],
    ]


def test_within_window():
    bias = torch.arange(1, 17).view(4, 4)
    assert reference.within_window(bias, 1).tolist() == bias.diag().diag().tolist()
    assert reference.within_window(bias, 2).tolist() == [
        [1, 2, 0, 0],
        [5, 6, 7, 0],
        [0, 10, 11, 12],
        [0, 0, 15, 16],
    ]
    assert reference.within_window(bias, 4).equal(bias)


def test_conv_filter():
    weight = torch.tensor([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]], dtype=torch.float64)
    scale = torch.tensor([[2.0], [3.0]], dtype=torch.float64)
    shift = torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    std = sqrt((4 + 1 + 9) / 3)
    expected = [[0.5 + 2 * d / std for d in (-2, -1, 3)], [-1.0, -1.0, -1.0]]
    torch.testing.assert_close(
        reference.conv_filter(weight, scale, shift),
        torch.tensor(expected, dtype=torch.float64),
    )
