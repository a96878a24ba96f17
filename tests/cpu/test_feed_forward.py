import pytest
import torch
from espnet2.legacy.nets.pytorch_backend.transformer.positionwise_feed_forward import (
    PositionwiseFeedForward as ESPnetFeedForward,
)

from espnet_fastformer.cpu.feed_forward import PositionwiseFeedForward
from espnet_fastformer.layers.pieces import FRAMES_AT_ONCE
from tests.layers.memory import allocated


@pytest.mark.parametrize("frames", [1, FRAMES_AT_ONCE, FRAMES_AT_ONCE + 1, 9001])
def test_equals_espnets(frames):
    torch.manual_seed(0)
    ours = PositionwiseFeedForward(8, 32, 0.1).eval()
    theirs = ESPnetFeedForward(8, 32, 0.1).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, frames, 8)
    expected = theirs(x)
    torch.testing.assert_close(ours(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), expected)


def test_hidden_values_of_many_frames_are_never_there_at_once():
    layer = PositionwiseFeedForward(8, 32, 0.1).eval()
    x = torch.randn(1, 5 * FRAMES_AT_ONCE, 8)
    with torch.no_grad():
        largest = allocated(lambda: layer(x)).largest
    assert largest == max(x.numel(), FRAMES_AT_ONCE * 32)
