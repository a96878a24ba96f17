import copy

import pytest
import torch
from espnet2.asr.layers.cgmlp import ConvolutionalGatingMLP

from espnet_fastformer.layers.depthwise_conv import (
    DepthwiseConv1d,
    replace_depthwise_convs,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("channels, frames", [(6, 1), (6, 50), (64, 331), (512, 2100)])
@pytest.mark.parametrize("kernel_size", [1, 3, 31])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_conv1d(channels, frames, kernel_size, bias):
    conv = torch.nn.Conv1d(
        channels,
        channels,
        kernel_size,
        padding=kernel_size // 2,
        groups=channels,
        bias=bias,
    )
    fast = DepthwiseConv1d.from_conv1d(copy.deepcopy(conv))
    assert fast.state_dict().keys() == conv.state_dict().keys()
    results = []
    for module in (conv, fast):
        torch.manual_seed(1)
        x = torch.randn(1, frames, channels, requires_grad=True)
        y = module(x.transpose(1, 2))
        y.sin().sum().backward()
        results.append([y, x.grad, *(p.grad for p in module.parameters())])
    for actual, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_equals_conv1d_in_every_dtype(dtype, device):
    conv = torch.nn.Conv1d(8, 8, 5, padding=2, groups=8).to(device, dtype)
    x = torch.randn(2, 21, 8, device=device, dtype=dtype).transpose(1, 2)
    actual = DepthwiseConv1d.from_conv1d(conv)(x)
    torch.testing.assert_close(actual, conv(x), rtol=2e-2, atol=2e-2)


def test_output_has_the_layout_of_the_input():
    fast = DepthwiseConv1d(8, 8, 5, padding=2, groups=8)
    assert fast(torch.randn(2, 21, 8).transpose(1, 2)).transpose(1, 2).is_contiguous()


def test_replacement_keeps_parameters_and_names():
    module = ConvolutionalGatingMLP(16, 32, 7, 0.0, False, "identity")
    parameters = dict(module.named_parameters())
    x = torch.randn(2, 30, 16)
    expected = module(x, None)
    replace_depthwise_convs(module)
    assert type(module.csgu.conv) is DepthwiseConv1d
    assert dict(module.named_parameters()).keys() == parameters.keys()
    for name, parameter in module.named_parameters():
        assert parameter is parameters[name]
    torch.testing.assert_close(module(x, None), expected)


def test_other_convolutions_stay():
    module = torch.nn.Sequential(
        torch.nn.Conv1d(8, 8, 3), torch.nn.Conv1d(8, 8, 3, stride=2, groups=8)
    )
    replace_depthwise_convs(module)
    assert all(type(conv) is torch.nn.Conv1d for conv in module)
