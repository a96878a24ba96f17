"""What the mixers show of themselves is what they compute with."""

import pytest
import torch

from espnet_fastformer.layers.fastformer import FastSelfAttention

from .checks import AFT_LAYERS, SIZE, build, mask_of, position_bias, random_inputs

MIXERS = ["fastformer", "fastformer-folded", *AFT_LAYERS]
LENGTHS = [150, 97, 1, 0]


def output_of(layer, inputs, shown: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output that sums with the shown weights give."""
    if isinstance(layer, FastSelfAttention):

        def pool(weights, frames):
            heads = frames.unflatten(2, (weights.size(1), -1))
            return torch.einsum("bht,bthd->bhd", weights, heads).flatten(1)[:, None]

        (x,) = inputs
        query = layer.query(x)
        mixed = layer.key(x) * pool(shown["alpha"], query)
        return layer.transform(query * pool(shown["beta"], mixed)) + query

    query, _, value = inputs
    keys = shown["key_weights"]  # (B, K, T)
    bias = layer.position_bias_matrix(query.size(1), torch.float64)
    bias = torch.zeros(1, 1, 1) if bias is None else bias
    weights = keys.unsqueeze(2) * bias.exp().expand(keys.size(1), -1, -1)
    weights = weights / weights.sum(-1, keepdim=True)  # (B, K, T or 1, T')
    value = layer.linear_v(value).unflatten(2, (keys.size(1), -1))
    pooled = torch.einsum("bkst,btkd->bskd", weights.nan_to_num(0.0), value)
    return layer.linear_out(layer.linear_q(query).sigmoid() * pooled.flatten(2))


@pytest.mark.parametrize("name", MIXERS)
def test_shown_weights_give_the_output(name):
    layer = build(name).double()
    frames = max(LENGTHS)
    inputs = random_inputs(layer, len(LENGTHS), frames)
    mask = mask_of(LENGTHS, frames)
    shown = layer.attention_weights(*inputs, mask)
    for weights in shown.values():
        assert weights.shape[::2] == (len(LENGTHS), frames)
        assert not weights.masked_select(~mask).any()
        sums = torch.tensor(LENGTHS).clamp(max=1).unsqueeze(1).to(weights)
        torch.testing.assert_close(weights.sum(-1), sums.expand(-1, weights.size(1)))
    torch.testing.assert_close(output_of(layer, inputs, shown), layer(*inputs, mask))


@pytest.mark.parametrize("name", AFT_LAYERS)
@pytest.mark.parametrize("frames", [1, 5, 89, 90, 150])
def test_position_bias(name, frames):
    layer = build(name)
    shown = layer.position_bias_matrix(frames)
    if name == "simple":
        assert shown is None
    else:
        expected = position_bias(layer, frames)
        torch.testing.assert_close(shown, expected.view(-1, frames, frames))


@pytest.mark.parametrize("name", MIXERS)
def test_mask_is_optional(name):
    layer = build(name)
    inputs = random_inputs(layer, 2, 20, dtype=torch.float32)
    shown = layer.attention_weights(*inputs)
    everything = layer.attention_weights(*inputs, torch.ones(2, 1, 20))
    for kind, weights in shown.items():
        torch.testing.assert_close(weights, everything[kind])


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_shown_in_float32(name, dtype):
    layer = build(name)
    inputs = random_inputs(layer, 2, 20, dtype=torch.float32)
    exact = layer.attention_weights(*inputs)
    halves = [x.to(dtype) for x in inputs]
    with torch.autocast("cpu", dtype):
        mixed = layer.attention_weights(*halves)
    half = layer.to(dtype).attention_weights(*halves)
    for kind, weights in exact.items():
        for rounded in (mixed[kind], half[kind]):
            assert rounded.dtype == torch.float32
            torch.testing.assert_close(rounded, weights, rtol=0.2, atol=0.01)


def test_heads_are_shown_apart():
    """A head that looks at one frame alone, beside one that looks at all alike."""
    layer = build("fastformer")
    x = torch.zeros(1, 10, SIZE)
    x[0, 7] = 1.0
    with torch.no_grad():
        layer.query.weight.copy_(torch.eye(SIZE))
        layer.query_att.weight.copy_(torch.tensor([[0.0], [100.0]]).expand(2, SIZE))
        layer.query_att.bias.zero_()
    alpha = layer.attention_weights(x)["alpha"]
    torch.testing.assert_close(alpha[0, 0], torch.full((10,), 0.1))
    torch.testing.assert_close(alpha[0, 1], torch.eye(10)[7])
