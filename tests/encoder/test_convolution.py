"""Convolutions along time, and as compilers take them."""

import copy

import pytest
import torch

from espnet_fastformer import cpu
from espnet_fastformer.encoder.convolution import (
    DepthwiseConv1d,
    PointwiseConv1d,
    opaque_conv1d,
)
from espnet_fastformer.encoder.replacement import replace_layers
from espnet_fastformer.layers import reference
from espnet_fastformer.layers.chunks import Chunks, in_chunks
from tests.layers.checks import assert_near, evaluate

SIZE = 8


@pytest.mark.parametrize(
    "fast, options",
    [
        (DepthwiseConv1d, {"kernel_size": 5, "padding": 2, "groups": 8}),
        (PointwiseConv1d, {"kernel_size": 1}),
    ],
)
def test_compiled_equals_conv1d(fast, options, device):
    torch.manual_seed(0)
    torch._dynamo.reset()
    bias = (fast is DepthwiseConv1d) == (device.type == "cpu")  # In turn.
    conv = torch.nn.Conv1d(8, 8, bias=bias, **options).to(device)
    layer = replace_layers(copy.deepcopy(conv), [fast])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for autocast, tolerance in ((False, 1e-5), (True, 2e-2)):
        x = torch.randn(2, 21, 8, device=device)
        results = []
        for call, module in ((conv, conv), (compiled, layer)):
            module.zero_grad()
            x_in = x.clone().requires_grad_()
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                out = call(x_in.mT)
            out.float().sin().sum().backward()
            results.append([out, x_in.grad, *(p.grad for p in module.parameters())])
        for actual, expected in zip(*reversed(results), strict=True):
            torch.testing.assert_close(
                actual, expected, rtol=tolerance, atol=10 * tolerance
            )


@pytest.mark.parametrize("channels, groups", [(8, 8), (4, 1)])
def test_operator_is_what_compilers_expect(channels, groups):
    # torch's own check knows no simulated device.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(2, 8, 21, device=device, requires_grad=True)
    weight = torch.randn(channels, 8 // groups, 5, device=device, requires_grad=True)
    bias = torch.randn(channels, device=device, requires_grad=True)
    for arguments in ((x, weight, bias), (x.detach().mT.contiguous().mT, weight, None)):
        torch.library.opcheck(opaque_conv1d, arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 4, "kernel_size": 3},
        {"groups": 8, "kernel_size": 3, "stride": 2},
        {"groups": 8, "kernel_size": 3, "dilation": 2},
        {"groups": 8, "kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"groups": 8, "kernel_size": 3, "padding": "same"},
    ],
)
def test_other_convolutions_stay(options):
    assert not DepthwiseConv1d.fits(torch.nn.Conv1d(8, 8, **options))


@pytest.mark.parametrize("kind", [DepthwiseConv1d, cpu.DepthwiseConv1d])
@pytest.mark.parametrize("kernel_size", [1, 3, 31])
@pytest.mark.parametrize("size", [1, 4, 40])
def test_no_later_chunk_is_read(size, kernel_size, kind, device):
    conv = kind(
        SIZE, SIZE, kernel_size, padding=kernel_size // 2, groups=SIZE, device=device
    ).double()
    plain_conv = torch.nn.Conv1d(
        SIZE, SIZE, kernel_size, padding=kernel_size // 2, groups=SIZE
    )
    plain_conv = plain_conv.double().to(device)
    plain_conv.load_state_dict(conv.state_dict())
    x = torch.randn(2, SIZE, 80, device=device, dtype=torch.float64)
    cotangent = torch.randn_like(x)

    def in_chunks_of(x, mask=None):
        with in_chunks(Chunks(size)):
            return conv(x)

    def by_definition(x, mask=None):
        return reference.chunked_convolution(plain_conv, x, size)

    actual = evaluate(in_chunks_of, conv.named_parameters(), [x], cotangent)
    expected = evaluate(by_definition, plain_conv.named_parameters(), [x], cotangent)
    for key, value in expected.items():
        assert_near(actual[key], value, 1e-9)

    states, outs = None, []
    for count in (1, 0, 80 // size - 1):
        chunks = Chunks(size, states=states)
        start = sum(out.size(2) for out in outs)
        if count:
            with in_chunks(chunks):
                outs.append(conv(x[..., start : start + count * size]))
            states = chunks.next_states
    torch.testing.assert_close(torch.cat(outs, 2), expected["output"])
