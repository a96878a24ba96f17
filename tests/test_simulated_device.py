"""The device that stands in for a GPU does what CUDA does."""

import copy
import io

import pytest
import torch
from torch.nn import functional as F


@pytest.fixture
def count(simulated):
    from tests.simulated_device import count

    return count


def randn(*size: int, **options) -> torch.Tensor:
    return torch.randn(*size, device="simulated", **options)


def test_views_share_memory_and_copies_do_not(simulated):
    x = torch.zeros(3, 4, device=simulated)
    x[:, 1] = 2.0
    x.mT[0].add_(1.0)
    expected = torch.tensor([1.0, 2.0, 0.0, 0.0]).expand(3, 4)
    assert torch.equal(x.cpu(), expected)
    assert x.mT.stride() == (1, 4) and x.mT.contiguous().stride() == (3, 1)
    x.cpu().fill_(7.0)
    copy.deepcopy(x).fill_(7.0)
    assert torch.equal(x.cpu(), expected)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.mT.view(12)


def test_operations_refuse_two_devices(simulated):
    x = randn(3)
    for function in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3, 3) @ x,
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: torch.ones(3)[x.long()],
        lambda: F.layer_norm(x, (3,), torch.ones(3)),
    ):
        with pytest.raises(RuntimeError, match="device"):
            function()
    with pytest.raises(TypeError, match="simulated"):
        x.numpy()
    # As on CUDA, numbers pass, and indices.
    expected = x.cpu()[[2, 0]] * 2.0
    assert torch.equal((x * torch.tensor(2.0))[torch.tensor([2, 0])].cpu(), expected)


def test_modules_and_checkpoints_move(simulated):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    expected = copy.deepcopy(model.state_dict())
    model.to(simulated)
    assert {x.device.type for x in model.state_dict().values()} == {"simulated"}
    assert {type(p) for p in model.parameters()} == {torch.nn.Parameter}
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for device in (None, "cpu", "simulated"):
        file.seek(0)
        loaded = torch.load(file, map_location=device)
        for key, value in expected.items():
            assert loaded[key].device.type == (device or "simulated")
            assert torch.equal(loaded[key].cpu(), value)


def test_layers_are_one_kernel_as_on_cuda(count):
    x = randn(2, 5, 8, requires_grad=True)
    module = torch.nn.LayerNorm(8).to("simulated")
    with count() as counts:
        F.dropout(module(x).softmax(-1), 0.5).backward(randn(2, 5, 8))
    assert dict(counts.kernels) == {
        "normal_": 1,
        "native_layer_norm": 1,
        "_softmax": 1,
        "native_dropout": 1,
        "native_dropout_backward": 1,
        "_softmax_backward_data": 1,
        "native_layer_norm_backward": 1,
    }
    with count() as counts:
        F.silu(x.mT.contiguous().view(2, -1)).add_(1.0)
    assert dict(counts.kernels) == {"copy_": 1, "silu": 1, "add_": 1}


@pytest.mark.parametrize("is_masked", [False, True])
def test_attention_is_one_kernel(is_masked, count):
    inputs = [randn(2, 1, 6, 4, requires_grad=True) for _ in range(3)]
    mask = (torch.arange(6) < 4).expand(2, 1, 6, 6) if is_masked else None
    results = []
    for device in ("simulated", "cpu"):
        moved = [x.to(device) for x in inputs]
        given = None if mask is None else mask.to(device)
        with count() as counts:
            out = F.scaled_dot_product_attention(*moved, attn_mask=given)
            gradients = torch.autograd.grad(out.sum(), inputs)
        results.append([out.cpu(), *(x.cpu() for x in gradients)])
        if device == "simulated":
            of_attention = [k for k in counts.kernels if "attention" in k]
            assert [counts.kernels[k] for k in of_attention] == [1, 1]
            assert not {"bmm", "_softmax"} & set(counts.kernels)
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_adds_its_bias_by_itself(groups, count):
    conv = torch.nn.Conv1d(4, 6, 3, groups=groups).to("simulated")
    x = randn(2, 4, 10, requires_grad=True)
    with count() as counts:
        out = conv(x)
        forward = dict(counts.kernels)
        out.backward(out.detach())
    assert forward == {"convolution": 1, "add_": 1}
    backward = {k: n - forward.get(k, 0) for k, n in counts.kernels.items()}
    assert backward["convolution_backward"] == 2 and backward["sum"] == 1
    products = 2 * 2 * 8 * 4 * 6 * 3 // groups
    assert counts.flops == 3 * products


def test_bytes_are_those_of_memory_each_tensor_once(count):
    x, y = randn(30, 40), randn(40, 50)
    with count() as counts:
        x @ y
    assert counts.flops == 2 * 30 * 40 * 50
    assert (counts.bytes_read, counts.bytes_written) == (4 * (1200 + 2000), 4 * 1500)
    with count() as counts:
        x * x  # Reads one tensor.
        x.add_(y[:, 0])  # Reads what it changes.
        x.zero_()  # Writes only.
        x[:, :1].expand(-1, 50) + 1.0  # Has 30 numbers.
        y.flatten().unfold(0, 9, 1).sum()  # Has 2000, in windows that overlap.
    read, written = 4 * (1200 + 1240 + 30 + 2000), 4 * (3 * 1200 + 1500 + 1)
    assert (counts.bytes_read, counts.bytes_written) == (read, written)
    assert sum(counts.kernels.values()) == 5
    with count() as counts:
        x.half().bool().view(-1)
    assert counts.bytes_read == (4 + 2) * 1200 and counts.bytes_written == 3 * 1200


def test_waits_of_the_host(count):
    x = randn(5)
    is_positive = x > 0
    waiting = [
        lambda: x.max().item(),
        lambda: bool(is_positive.any()),
        lambda: x.cpu(),
        lambda: x[is_positive],
        lambda: x.masked_select(is_positive),
        lambda: x.nonzero(),
        lambda: x.tolist(),
        lambda: torch.equal(x, x),
        lambda: x.clone().index_put_((is_positive,), x[0]),
    ]
    for function in waiting:
        with count() as counts:
            function()
        assert counts.waits.total() == 1, counts
    with count() as counts:
        torch.ones(5).to("simulated")
        x.masked_fill(is_positive, 0.0)[torch.arange(2, device="simulated")].sum()
        x[2], x[1:3], x.clone(), x.to(torch.float16)
    assert not counts.waits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_as_on_cuda(dtype, simulated):
    x, low = randn(4, 4), randn(4, 4, dtype=dtype)
    linear = torch.nn.Linear(4, 4).to(simulated)
    with torch.autocast("simulated", dtype):
        in_low = [
            linear(x),
            x @ x,
            torch.einsum("ij,kj->ik", x, x),
            F.conv1d(x[None], x[..., None]),
            F.scaled_dot_product_attention(*(x[None, None],) * 3),
            low * low,
            low.sum(0, dtype=dtype),
        ]
        in_float32 = [
            low.exp(),
            low.softmax(-1),
            low.sum(),
            low.cumsum(0),
            low.norm(),
            F.layer_norm(low, (4,)),
            F.cross_entropy(low, torch.zeros(4, dtype=torch.long, device=simulated)),
            torch.addcmul(low, x, low),
            low + x,
        ]
        assert (x.double() @ x.double()).dtype == torch.float64
        with torch.autocast("simulated", enabled=False):
            assert linear(x).dtype == torch.float32
    assert {y.dtype for y in in_low} == {dtype}
    assert {y.dtype for y in in_float32} == {torch.float32}
    linear(x).sum().backward()
    assert linear.weight.grad.dtype == torch.float32
    # A sum of what is larger than float16 holds.
    with torch.autocast("simulated", dtype):
        assert torch.full((1000,), 100.0, dtype=dtype, device=simulated).sum() == 1e5


def test_torch_is_left_as_it_was():
    from tests import simulated_device

    with simulated_device.available():
        assert torch.simulated.is_available()
    assert not torch.simulated.is_available()
    assert "__new__" not in vars(torch.UntypedStorage)
