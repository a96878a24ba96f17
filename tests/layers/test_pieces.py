"""Long recordings a piece at a time."""

import pytest
import torch

from espnet_fastformer.layers import pieces as module
from espnet_fastformer.layers.pieces import FRAMES_AT_ONCE, by_pieces, is_long

from .checks import AFT_LAYERS, build, mask_of, random_inputs
from .memory import allocated

LONG = 2 * FRAMES_AT_ONCE + 77


@pytest.mark.parametrize("frames", [1, 9, 10, 11, 25])
def test_pieces_equal_the_whole(frames, monkeypatch):
    monkeypatch.setattr(module, "FRAMES_AT_ONCE", 10)
    x, same = torch.randn(2, frames, 3), torch.randn(2, 1, 3)
    seen = []

    def function(x, same):
        seen.append(x.size(1))
        return x * same

    with torch.no_grad():
        torch.testing.assert_close(by_pieces(function, x, same), x * same)
    assert max(seen) <= 10
    assert sum(seen) == frames


def test_gradients_need_the_whole():
    assert not is_long(LONG)
    with torch.no_grad():
        assert is_long(LONG)
        assert not is_long(FRAMES_AT_ONCE)


@pytest.mark.parametrize("name", AFT_LAYERS)
@pytest.mark.parametrize("has_padding", [False, True])
def test_long_recordings_equal_the_whole(name, has_padding, device):
    layer = build(name, device).float().eval()
    inputs = random_inputs(layer, 2, LONG, device, torch.float32)
    mask = mask_of([LONG, FRAMES_AT_ONCE + 5], LONG, device) if has_padding else None
    whole = layer(*inputs, mask)
    with torch.no_grad():
        torch.testing.assert_close(layer(*inputs, mask), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["simple", "local-offset", "conv"])
def test_long_recordings_take_little_memory(name):
    """Beside keys and weighted values, which all queries need, and the output."""
    layer = build(name).float().eval()
    inputs = random_inputs(layer, 1, 4 * FRAMES_AT_ONCE, dtype=torch.float32)
    with torch.no_grad():
        most = allocated(lambda: layer(*inputs)).largest
    assert most <= 2.5 * inputs[0].numel()
