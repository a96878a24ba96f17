"""Every mixer, its plain definition, and the comparison of the two."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from espnet_fastformer.cpu.fastformer import FoldedFastSelfAttention
from espnet_fastformer.layers import reference
from espnet_fastformer.layers.aft import AFTConv, AFTFull, AFTLocal, AFTSimple
from espnet_fastformer.layers.fastformer import FastSelfAttention

SIZE = 8
HEADS = 2

# For what differs in numbers alone, which the simulated device has from the CPU.
where_numbers_differ = pytest.mark.parametrize(
    "device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
)

# Shorter than many of the inputs, so that both sides of the limit are seen.
MAX_LEN = 90

AFT_LAYERS = {
    "full-factorized": partial(AFTFull, max_len=MAX_LEN, bias_rank=3),
    "full-dense": partial(AFTFull, max_len=MAX_LEN, bias="dense"),
    "full-dense-simple": partial(AFTFull, max_len=MAX_LEN, bias="dense", simple=True),
    "local-offset": partial(AFTLocal, window_size=6),
    "local-offset-wide": partial(AFTLocal, window_size=80),
    "local-factorized": partial(
        AFTLocal, window_size=6, bias="factorized", bias_rank=3, max_len=MAX_LEN
    ),
    "simple": AFTSimple,
    "conv": partial(AFTConv, attention_heads=HEADS, kernel_size=7),
    "conv-wide": partial(AFTConv, attention_heads=SIZE, kernel_size=151),
}
MIXERS = {
    "fastformer": partial(FastSelfAttention, attention_heads=HEADS),
    "fastformer-folded": partial(FoldedFastSelfAttention, attention_heads=HEADS),
    **AFT_LAYERS,
}


def build(name: str, device="cpu", dropout_rate: float = 0.0, **options):
    """A mixer with random parameters, so that its position bias matters."""
    layer = MIXERS[name](size=SIZE, dropout_rate=dropout_rate, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.to(device)


def random_inputs(layer, batch: int, frames: int, device="cpu", dtype=torch.float64):
    """What `layer` reads before the mask: x, or a query, key and value that differ."""
    count = 1 if isinstance(layer, FastSelfAttention) else 3
    shape = (batch, frames, SIZE)
    return [torch.randn(shape, device=device, dtype=dtype) for _ in range(count)]


def mask_of(lengths: list[int], frames: int, device="cpu") -> torch.Tensor:
    lengths = torch.tensor(lengths, device=device)
    return torch.arange(frames, device=device) < lengths[:, None, None]


def position_bias(layer, frames: int) -> torch.Tensor:
    """The (T, T) or (H, T, T) position bias that an AFT layer stands for."""
    match layer:
        case AFTSimple():
            return layer.linear_k.weight.new_zeros(1, 1)
        case AFTConv():
            taps = reference.conv_filter(
                layer.filter_weight, layer.filter_scale, layer.filter_shift
            )
            return reference.offset_bias(taps, frames)
    bias = layer.position_bias
    if isinstance(bias, torch.nn.Module):
        bias = reference.factorized_bias(bias.query, bias.key, frames)
    elif bias.dim() == 1:
        bias = reference.offset_bias(bias, frames)
    else:
        bias = reference.dense_bias(bias, frames)
    if isinstance(layer, AFTLocal):
        bias = reference.within_window(bias, layer.radius + 1)
    return bias


def plain(layer, *inputs, mask=None) -> torch.Tensor:
    """Output of `layer` by its plain definition, without dropout."""
    if isinstance(layer, FastSelfAttention):
        return reference.fast_self_attention(layer, *inputs, mask)
    query, key, value = inputs
    y = reference.aft(
        layer.linear_q(query),
        layer.linear_k(key),
        layer.linear_v(value),
        position_bias(layer, query.size(1)),
        mask,
    )
    return y if layer.linear_out is None else layer.linear_out(y)


def evaluate(function, parameters, inputs, cotangent, mask=None, context=None):
    """Output and gradients of inputs and parameters, by name."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with context or nullcontext():
        output = function(*inputs, mask=mask)
    sources = {f"input {i}": x for i, x in enumerate(inputs)} | dict(parameters)
    gradients = torch.autograd.grad(
        output, list(sources.values()), cotangent.to(output.dtype)
    )
    return {"output": output.detach()} | dict(zip(sources, gradients, strict=True))


def assert_near(actual, expected, tolerance: float, like=None):
    """Equal within `tolerance` of the largest entry, or of one if all are smaller.

    Where terms cancel, their size is that of `like`.
    """
    like = expected if like is None else like
    scale = max(1.0, like.abs().max().item())
    torch.testing.assert_close(
        actual.to(expected), expected, rtol=tolerance, atol=tolerance * scale
    )


def assert_matches_plain(layer, inputs, tolerance, mask=None, context=None):
    """The output and every gradient against the plain definition in float64."""
    cotangent = torch.randn_like(inputs[0])
    actual = evaluate(layer, layer.named_parameters(), inputs, cotangent, mask, context)
    exact = copy.deepcopy(layer).double()
    expected = evaluate(
        partial(plain, exact),
        exact.named_parameters(),
        [x.double() for x in inputs],
        cotangent,
        mask,
    )
    for name, value in expected.items():
        assert actual[name].isfinite().all(), name
        # The gradient of a bias adds up what that of the weight does, with signs: all
        # is lost in it of AFT's keys, whose shift changes nothing.
        like = expected.get(name.replace(".bias", ".weight"))
        try:
            assert_near(actual[name], value, tolerance, like)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
