import pytest
import torch

from espnet_fastformer.cpu.dropout import Dropout
from espnet_fastformer.encoder.replacement import replace_layers


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("position", range(4))
def test_drops_with_its_probability(p, position):
    x = torch.ones(400_000)
    # Four values share a random number of 64 bits.
    y = Dropout(p)(x)[position::4]
    share = y.eq(0).float().mean().item()
    deviation = (p * (1 - p) / len(y)) ** 0.5
    assert abs(share - p) < 5 * deviation
    kept = y[y != 0]
    torch.testing.assert_close(
        kept, torch.full_like(kept, 1 / (1 - p)), rtol=1e-4, atol=0
    )


def test_neighbours_are_independent():
    dropped = Dropout(0.5)(torch.ones(400_000)).eq(0).float() - 0.5
    for lag in (1, 2, 3, 4, 8):
        correlation = 4 * (dropped[lag:] * dropped[:-lag]).mean()
        assert abs(correlation) < 5 / len(dropped) ** 0.5


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 7), (0, 4)])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
def test_gradient_is_that_of_what_stays(shape, dtype, device):
    x = torch.randn(shape, dtype=dtype, device=device).requires_grad_()
    y = Dropout(0.3)(x)
    assert y.dtype is dtype and y.shape == x.shape
    grad = torch.randn_like(y)
    y.backward(grad)
    scale = torch.where(y == 0, 0.0, 1 / 0.7).to(dtype)
    torch.testing.assert_close(y, x * scale, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(x.grad, grad * scale, rtol=1e-2, atol=1e-3)


def test_layout_of_the_input_does_not_matter():
    x = torch.randn(3, 5, 7, requires_grad=True)
    y = Dropout(0.5)(x.mT)
    y.sum().backward()
    torch.testing.assert_close(x.grad.mT * x.mT, y)


def test_gradient_checkpointing_keeps_no_mask():
    x, kept = torch.randn(3, 5, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
        Dropout(0.5)(x)
    assert [mask.shape for mask in kept] == [x.shape]


def test_equal_seeds_give_equal_masks():
    dropout, x = Dropout(0.3), torch.randn(1001)
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        results.append(dropout(x))
    assert results[0].equal(results[1]) and not dropout(x).equal(results[0])


@pytest.mark.parametrize("p, expected", [(0.0, 1.0), (1e-6, 1.0), (1.0, 0.0)])
def test_extreme_probabilities(p, expected):
    x = torch.ones(1000)
    torch.testing.assert_close(Dropout(p)(x), x * expected)


def test_evaluation_changes_nothing():
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x).equal(x)


def test_replacement():
    dropout = replace_layers(torch.nn.Dropout(0.2).eval(), [Dropout])
    assert type(dropout) is Dropout and dropout.p == 0.2 and not dropout.training
    for other in (torch.nn.Dropout1d(0.4), torch.nn.Dropout(0.2, inplace=True)):
        assert not Dropout.fits(other)
