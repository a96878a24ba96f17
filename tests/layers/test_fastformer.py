"""FastSelfAttention in the place of ESPnet's module of that name."""

import copy

import pytest
import torch
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoderLayer
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoderLayer
from espnet2.asr.layers.cgmlp import ConvolutionalGatingMLP
from espnet2.asr.layers.fastformer import FastSelfAttention as ESPnetFastSelfAttention
from espnet2.torch_utils.initialize import initialize
from typeguard import TypeCheckError

from espnet_fastformer.cpu.fastformer import FoldedFastSelfAttention
from espnet_fastformer.layers.fastformer import FastSelfAttention

from .checks import assert_near, evaluate, mask_of, where_numbers_differ

SIZE = 16
HEADS = 4


@pytest.fixture(params=[FastSelfAttention, FoldedFastSelfAttention])
def kind(request):
    return request.param


def pair(kind, device="cpu", dropout_rate: float = 0.1):
    """Ours and ESPnet's with the same random weights, in evaluation mode."""
    ours = kind(SIZE, HEADS, dropout_rate)
    theirs = ESPnetFastSelfAttention(SIZE, HEADS, dropout_rate)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(theirs.state_dict())
    return ours.to(device).eval(), theirs.to(device).eval()


@where_numbers_differ
@pytest.mark.parametrize("frames", [1, 2, 15, 16, 17, 100])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_output_and_gradients_equal_espnet(frames, masked, training, device, kind):
    ours, theirs = pair(kind, device, dropout_rate=0.0 if training else 0.1)
    ours.train(training)
    theirs.train(training)
    x = torch.randn(3, frames, SIZE, device=device)
    mask = mask_of([frames, (frames + 1) // 2, 0], frames, device) if masked else None
    cotangent = torch.randn_like(x)
    expected = evaluate(theirs, theirs.named_parameters(), [x], cotangent, mask)
    actual = evaluate(ours, ours.named_parameters(), [x], cotangent, mask)
    for name, value in expected.items():
        assert_near(actual[name], value, 1e-5)


def test_weights_move_both_ways(device, kind):
    ours, theirs = pair(kind, device)
    x = torch.randn(2, 20, SIZE, device=device)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    expected = ours(x, None)
    assert not torch.allclose(theirs(x, None), expected)
    theirs.load_state_dict(ours.state_dict())
    assert_near(theirs(x, None), expected, 1e-5)


def test_attributes_and_heads_are_espnets(kind):
    ours, theirs = pair(kind)
    assert isinstance(ours, ESPnetFastSelfAttention)
    assert ours.attention_head_size == theirs.attention_head_size == SIZE // HEADS
    assert ours.num_attention_heads == theirs.num_attention_heads == HEADS
    x = torch.randn(2, 5, SIZE)
    assert torch.equal(ours.transpose_for_scores(x), theirs.transpose_for_scores(x))


def test_dropout_has_espnets_distribution(kind):
    """Mean and covariance of the output over many independent dropout masks."""
    ours, theirs = (layer.train() for layer in pair(kind, dropout_rate=0.3))
    samples, frames = 40_000, 3
    x = torch.randn(1, frames, SIZE).expand(samples, -1, -1)
    mask = mask_of([frames - 1], frames).expand(samples, -1, -1)

    def moments(layer):
        """The mean and the covariance, each with its squared standard error."""
        with torch.no_grad():
            y = layer(x, mask)[:, :-1].flatten(1).double()
        mean = y.mean(0)
        y = y - mean
        covariance = y.mT @ y / samples
        spread = y.square().mT @ y.square() / samples - covariance.square()
        return (mean, covariance.diag() / samples), (covariance, spread / samples)

    for (a, a_error), (b, b_error) in zip(moments(ours), moments(theirs), strict=True):
        assert ((a - b).abs() < 5 * (a_error + b_error).sqrt()).all()


@pytest.mark.parametrize("name", ["query_att", "key_att"])
def test_padding_stays_out_however_low_the_scores(name, kind):
    ours, _ = pair(kind)
    ours.double()
    x = torch.randn(2, 30, SIZE, dtype=torch.float64)
    mask = mask_of([30, 3], 30)
    expected = ours(x, mask)
    getattr(ours, name).bias.data.sub_(1e5)
    assert_near(ours(x, mask), expected, 1e-9)


def e_branchformer_layer(attention):
    cgmlp = ConvolutionalGatingMLP(SIZE, 2 * SIZE, 3, 0.0, False, "identity")
    return EBranchformerEncoderLayer(SIZE, attention, cgmlp, None, None, 0.0)


def branchformer_layer(attention):
    cgmlp = ConvolutionalGatingMLP(SIZE, 2 * SIZE, 3, 0.0, False, "identity")
    return BranchformerEncoderLayer(SIZE, attention, cgmlp, 0.0, "concat")


@pytest.mark.parametrize("build_block", [e_branchformer_layer, branchformer_layer])
@pytest.mark.parametrize("with_positions", [False, True])
def test_inside_espnets_blocks(build_block, with_positions, device, kind):
    ours, theirs = pair(kind, device)
    block = build_block(theirs).to(device).eval()
    replaced = copy.deepcopy(block)
    replaced.attn = ours
    x = torch.randn(2, 30, SIZE, device=device)
    mask = mask_of([30, 13], 30, device)
    if with_positions:
        x = (x, torch.randn(1, 30, SIZE, device=device))
    (expected, _), (actual, _) = block(x, mask), replaced(x, mask)
    if with_positions:
        expected, actual = expected[0], actual[0]
    assert_near(actual, expected, 1e-5)


@pytest.mark.parametrize("build_block", [e_branchformer_layer, branchformer_layer])
@pytest.mark.parametrize("use_autocast", [False, True])
def test_bfloat16_inside_espnets_blocks(build_block, use_autocast, device, kind):
    """ESPnet's own attention raises TypeError here."""
    ours, _ = pair(kind, device)
    block = build_block(ours).to(device)
    x = torch.randn(2, 30, SIZE, device=device)
    mask = mask_of([30, 13], 30, device)
    expected, _ = block(x, mask)
    if use_autocast:
        with torch.autocast(device.type, torch.bfloat16):
            actual, _ = block(x, mask)
    else:
        actual, _ = block.bfloat16()(x.bfloat16(), mask)
    assert_near(actual.float(), expected, 0.05)
    actual.sum().backward()
    assert all(p.grad.isfinite().all() for p in block.parameters())


def test_initialization_is_espnets():
    layer = torch.nn.Sequential(FastSelfAttention(256, 4, 0.1))
    initialize(layer, "xavier_uniform")
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(("size", "heads"), [(10, 4), (3, 4)])
def test_size_must_be_divisible_by_heads(size, heads):
    with pytest.raises(ValueError, match=rf"\({size}\).*attention heads \({heads}\)"):
        FastSelfAttention(size, heads, 0.1)


def test_argument_types_are_checked():
    with pytest.raises(TypeCheckError, match="size"):
        FastSelfAttention("16", 4, 0.1)
