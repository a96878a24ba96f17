import copy

import pytest
import torch

from espnet_fastformer.cpu.depthwise_conv import DepthwiseConv1d
from espnet_fastformer.encoder import convolution
from espnet_fastformer.encoder.replacement import replace_layers


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def fast_form(conv):
    """The same convolution by DepthwiseConv1d."""
    layers = (convolution.DepthwiseConv1d, DepthwiseConv1d)
    fast = replace_layers(copy.deepcopy(conv), layers)
    assert type(fast) is DepthwiseConv1d
    return fast


@pytest.mark.parametrize("channels, frames", [(6, 1), (6, 50), (64, 331), (512, 1500)])
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
    fast = fast_form(conv)
    assert fast.state_dict().keys() == conv.state_dict().keys()
    results = []
    for module in (conv, fast):
        torch.manual_seed(1)
        x = torch.randn(2, frames, channels, requires_grad=True)
        y = module(x.transpose(1, 2))
        y.sin().sum().backward()
        results.append([y, x.grad, *(p.grad for p in module.parameters())])
    for actual, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=3e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_equals_conv1d_in_every_dtype(dtype, device):
    conv = torch.nn.Conv1d(8, 8, 5, padding=2, groups=8).to(device, dtype)
    x = torch.randn(2, 21, 8, device=device, dtype=dtype).transpose(1, 2)
    actual = fast_form(conv)(x)
    torch.testing.assert_close(actual, conv(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("padding", [0, 1, 2, 4])
def test_equals_conv1d_that_changes_the_length(padding):
    conv = torch.nn.Conv1d(8, 8, 5, padding=padding, groups=8)
    x = torch.randn(2, 8, 21)
    torch.testing.assert_close(fast_form(conv)(x), conv(x))


@pytest.mark.parametrize("bias", [True, False])
def test_equals_conv1d_under_autocast(bias):
    conv = torch.nn.Conv1d(8, 8, 5, padding=2, groups=8, bias=bias)
    results = []
    for module in (conv, fast_form(conv)):
        torch.manual_seed(1)
        x = torch.randn(2, 300, 8, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x.transpose(1, 2))
        assert y.dtype is torch.bfloat16
        y.float().sin().sum().backward()
        results.append([y, x.grad, *(p.grad for p in module.parameters())])
    for actual, expected in zip(*reversed(results), strict=True):
        assert actual.dtype is expected.dtype
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=0.1)


def test_gradients_in_float64():
    fast = DepthwiseConv1d(3, 3, 5, padding=2, groups=3, dtype=torch.float64)
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fast, x)
    weight = fast.weight.detach().requires_grad_()
    call = torch.func.functional_call
    assert torch.autograd.gradcheck(
        lambda weight: call(fast, {"weight": weight}, x.detach()), weight
    )


@pytest.mark.parametrize("is_training", [True, False])
def test_output_has_the_layout_of_espnets_layers(is_training):
    fast = DepthwiseConv1d(8, 8, 5, padding=2, groups=8)
    x = torch.randn(2, 21, 8).transpose(1, 2)
    mask = torch.ones(2, 1, 21, dtype=torch.bool)
    # Masking loses the layout of the input, here as in ESPnet's layers.
    for frames in (x, x.contiguous(), torch.where(mask, x, 0.0)):
        with torch.set_grad_enabled(is_training):
            assert fast(frames).transpose(1, 2).is_contiguous()
