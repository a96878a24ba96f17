import copy

import pytest
import torch

from espnet_fastformer.cpu.conv2d import Conv2d
from espnet_fastformer.encoder.replacement import replace_layers

FORMS = [
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 3, "stride": 1, "padding": (0, 1)},
    {"kernel_size": (5, 3), "stride": (3, 2), "bias": False},
    {"kernel_size": 3, "dilation": 2, "groups": 2},
]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def results(module, shape, dtype=torch.float32, autocast=False, device="cpu"):
    torch.manual_seed(1)
    x = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = module(x)
    y.float().sin().sum().backward()
    return [y, x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("channels", [2, 6])
@pytest.mark.parametrize("shape", [(1, 9, 9), (3, 40, 21)])
def test_equals_conv2d(form, channels, shape):
    batch, frames, features = shape
    conv = torch.nn.Conv2d(channels, 4, **form)
    fast = replace_layers(copy.deepcopy(conv), [Conv2d])
    assert fast.state_dict().keys() == conv.state_dict().keys()
    shape = (batch, channels, frames, features)
    for actual, expected in zip(
        results(fast, shape), results(conv, shape), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_equals_conv2d_in_every_dtype(dtype, device):
    conv = torch.nn.Conv2d(3, 4, 3, stride=2).to(device, dtype)
    fast = replace_layers(copy.deepcopy(conv), [Conv2d])
    arguments = ((2, 3, 21, 11), dtype, False, device)
    for actual, expected in zip(
        results(fast, *arguments), results(conv, *arguments), strict=True
    ):
        assert actual.dtype is expected.dtype is dtype
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_conv2d_under_autocast(dtype):
    conv = torch.nn.Conv2d(3, 4, 3, stride=2).to(dtype)
    fast = replace_layers(copy.deepcopy(conv), [Conv2d])
    arguments = ((2, 3, 21, 11), dtype, True)
    for actual, expected in zip(
        results(fast, *arguments), results(conv, *arguments), strict=True
    ):
        assert actual.dtype is expected.dtype
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=5e-2)


def test_gradient_of_a_part():
    fast = Conv2d(3, 4, 3).requires_grad_(False)
    fast.weight.requires_grad_()
    fast(torch.randn(2, 3, 9, 9)).sum().backward()
    assert fast.weight.grad is not None and fast.bias.grad is None


@pytest.mark.parametrize("is_training", [True, False])
def test_output_is_channels_last(is_training):
    fast = replace_layers(torch.nn.Conv2d(3, 4, 3), [Conv2d])
    with torch.set_grad_enabled(is_training):
        y = fast(torch.randn(2, 3, 9, 9))
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "options", [{"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}]
)
def test_other_convolutions_stay(options):
    assert not Conv2d.fits(torch.nn.Conv2d(3, 4, 3, **options))
