import pytest
import torch
from espnet2.asr.layers.cgmlp import ConvolutionalGatingMLP as ESPnetGatingMLP

from espnet_fastformer.cpu.cgmlp import ConvolutionalGatingMLP
from espnet_fastformer.layers.pieces import FRAMES_AT_ONCE
from tests.layers.memory import allocated

OPTIONS = {
    "size": 8,
    "linear_units": 32,
    "kernel_size": 31,
    "dropout_rate": 0.1,
    "use_linear_after_conv": True,
    "gate_activation": "tanh",
}


@pytest.mark.parametrize("frames", [1, FRAMES_AT_ONCE, FRAMES_AT_ONCE + 1, 9001])
@pytest.mark.parametrize("has_mask", [False, True])
def test_equals_espnets(frames, has_mask):
    torch.manual_seed(0)
    ours = ConvolutionalGatingMLP(**OPTIONS).eval()
    theirs = ESPnetGatingMLP(**OPTIONS).eval()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, frames, 8)
    lengths = torch.tensor([frames, frames // 2 + 1])
    mask = torch.arange(frames) < lengths[:, None, None] if has_mask else None
    expected = theirs(x, mask)
    torch.testing.assert_close(ours(x, mask), expected)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, mask), expected, rtol=1e-5, atol=1e-5)
        pos_emb = torch.randn(1, frames, 8)
        out, same = ours((x, pos_emb), mask)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert same is pos_emb


def test_hidden_values_of_many_frames_are_never_there_at_once():
    layer = ConvolutionalGatingMLP(**OPTIONS).eval()
    x = torch.randn(1, 5 * FRAMES_AT_ONCE, 8)
    with torch.no_grad():
        largest = allocated(lambda: layer(x, None)).largest
    assert largest <= max(x.numel(), (FRAMES_AT_ONCE + 30) * 32)
