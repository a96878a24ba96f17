import pytest
import torch

from espnet_fastformer.encoder.input_layer import (
    SUBSAMPLING,
    build_input_layer,
    build_positional_encoding,
    receptive_field,
    subsample,
)
from espnet_fastformer.layers import pieces
from tests.layers.memory import allocated

FEATURES = 20
every_subsampling = pytest.mark.parametrize("name", SUBSAMPLING)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def short_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "FRAMES_AT_ONCE", 48)


def build(name: str) -> torch.nn.Module:
    positions = build_positional_encoding("scaled_abs_pos", 16, 0.1, 10)
    return build_input_layer(name, FEATURES, 16, 0.1, positions, -1).eval()


def features(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), max(lengths), FEATURES), mask.unsqueeze(1)


@every_subsampling
@pytest.mark.parametrize("longest", [49, 96, 97, 98, 99, 100, 101, 331])
@torch.no_grad()
def test_pieces_give_the_whole(name, longest, short_pieces):
    embed = build(name)
    xs_pad, mask = features([longest, 15, 40])
    expected, expected_mask = embed(xs_pad, mask)
    actual, actual_mask = subsample(embed, xs_pad, mask)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(actual_mask, expected_mask)
    assert actual_mask.dtype == expected_mask.dtype


@pytest.mark.parametrize("name", [n for n in SUBSAMPLING if n.startswith("conv2d")])
@torch.no_grad()
def test_memory_of_pieces_does_not_grow_with_the_recording(name, short_pieces):
    embed = build(name)

    def largest(call, frames):
        xs_pad, mask = features([frames])
        return allocated(lambda: call(xs_pad, mask)).largest

    of_pieces = largest(lambda *x: subsample(embed, *x), 1920)
    of_one_piece = largest(embed, 48 + receptive_field(embed)[0])
    output = embed(*features([1920]))[0].numel()
    assert of_pieces <= max(of_one_piece, output)
    assert largest(embed, 1920) > 2 * of_pieces


@every_subsampling
def test_receptive_field_is_what_an_output_frame_depends_on(name):
    embed = build(name).double()
    size, stride = receptive_field(embed)
    xs_pad, mask = features([61])
    xs_pad = xs_pad.double().requires_grad_()
    out, _ = embed(xs_pad, mask)
    out[0, 2].square().sum().backward()
    seen = xs_pad.grad.abs().sum(-1).squeeze(0).nonzero().flatten()
    assert (seen.min(), seen.max()) == (2 * stride, 2 * stride + size - 1)


def test_layers_that_do_not_subsample_see_one_frame():
    assert receptive_field(build("linear")) == (1, 1)


def test_pieces_are_for_long_inputs_at_inference(short_pieces):
    embed = build("conv1d3")
    lengths = []
    embed.conv.register_forward_hook(lambda _, x, y: lengths.append(x[0].size(2)))
    subsample(embed, *features([331]))
    with torch.no_grad():
        subsample(embed, *features([48]))
        assert lengths == [331, 48]
        subsample(embed, *features([331]))
        assert max(lengths[2:]) < 100
        # The pieces call the layer's parts, and so pass over what hooks would do.
        embed.register_forward_hook(lambda *_: None)
        subsample(embed, *features([331]))
        assert lengths[-1] == 331
