"""Convolutions as compilers take them."""

import copy

import pytest
import torch

from espnet_fastformer.layers.depthwise_conv import DepthwiseConv1d
from espnet_fastformer.layers.opaque_conv import opaque_conv1d
from espnet_fastformer.layers.pointwise_conv import PointwiseConv1d


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "fast, options",
    [
        (DepthwiseConv1d, {"kernel_size": 5, "padding": 2, "groups": 8}),
        (PointwiseConv1d, {"kernel_size": 1}),
    ],
)
def test_compiled_equals_conv1d(fast, options, bias, device):
    torch.manual_seed(0)
    torch._dynamo.reset()
    conv = torch.nn.Conv1d(8, 8, bias=bias, **options).to(device)
    layer = fast.replacing(copy.deepcopy(conv))
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
