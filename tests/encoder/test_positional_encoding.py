import pytest
import torch
from espnet2.legacy.nets.pytorch_backend.transformer import embedding

from espnet_fastformer.encoder.positional_encoding import (
    ScaledSinusoidalEncoding,
    SinusoidalEncoding,
)

PAIRS = [
    (SinusoidalEncoding, embedding.PositionalEncoding),
    (ScaledSinusoidalEncoding, embedding.ScaledPositionalEncoding),
]


@pytest.mark.parametrize("ours, theirs", PAIRS)
def test_values_and_names_are_espnets(ours, theirs):
    encoding, expected = ours(6, 0.0, 10), theirs(6, 0.0, 10)
    assert encoding.state_dict().keys() == expected.state_dict().keys()
    for parameter in (*encoding.parameters(), *expected.parameters()):
        torch.nn.init.constant_(parameter, 0.3)
    for frames in (4, 10, 11, 300, 7):
        x = torch.randn(2, frames, 6)
        torch.testing.assert_close(encoding(x), expected(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("cls", [SinusoidalEncoding, ScaledSinusoidalEncoding])
def test_table_doubles(cls):
    encoding = cls(6, 0.0, 10)
    sizes = []
    for frames in range(1, 100):
        encoding(torch.zeros(1, frames, 6))
        sizes.append(encoding.pe.size(1))
    assert sorted(set(sizes)) == [10, 20, 40, 80, 160]
    encoding(torch.zeros(1, 1000, 6))
    assert encoding.pe.size(1) == 1000


@pytest.mark.parametrize("cls", [SinusoidalEncoding, ScaledSinusoidalEncoding])
def test_table_made_in_inference_mode_serves_training(cls):
    encoding = cls(6, 0.0, 10)
    with torch.inference_mode():
        encoding(torch.zeros(1, 20, 6))
    x = torch.randn(1, 5, 6, requires_grad=True)
    encoding(x).sum().backward()
    assert all(p.grad is not None for p in (x, *encoding.parameters()))


def test_half_precision_leaves_the_table_exact():
    encoding = SinusoidalEncoding(6, 0.0, 100)
    x = torch.randn(1, 100, 6)
    expected = encoding(x)
    half = encoding(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, rtol=0, atol=0.1)
    assert torch.equal(encoding(x), expected)


def test_a_graph_holds_no_table():
    encoding = SinusoidalEncoding(6, 0.0, 10)
    call = torch.compile(encoding, backend="eager", fullgraph=True, dynamic=True)
    x = torch.randn(1, 50, 6)
    torch.testing.assert_close(call(x), encoding(x), rtol=0, atol=1e-6)
    assert encoding.pe.size(1) == 50
    call(torch.randn(1, 200, 6))
    assert encoding.pe.size(1) == 50
