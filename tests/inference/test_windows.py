import pytest
import torch

from espnet_fastformer.encoder.fastformer_encoder import FastformerEncoder
from espnet_fastformer.inference.windows import encode_in_windows, overlapping_windows

INTERCTC = {"interctc_layer_idx": [1]}


@pytest.mark.parametrize("window", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("frames", [1, 5, 8, 9, 12, 31, 64])
def test_windows_cover_each_frame_once_and_well_inside(window, frames):
    windows = overlapping_windows(frames, window)
    used = [t for _, (start, stop) in windows for t in range(start, stop)]
    assert used == list(range(frames))
    for (first, last), (start, stop) in windows:
        assert last - first == min(window, frames)
        assert 0 <= first <= start < stop <= last <= frames
        margin = (window - window // 2) // 2
        assert first == 0 or start - first >= margin
        assert last == frames or last - stop >= margin


@pytest.fixture(params=[{}, INTERCTC], ids=["plain", "interctc"])
def encoder(request):
    torch.manual_seed(0)
    return FastformerEncoder(
        input_size=20,
        output_size=16,
        attention_heads=2,
        num_blocks=2,
        cgmlp_linear_units=32,
        cgmlp_conv_kernel=3,
        merge_conv_kernel=3,
        **request.param,
    ).eval()


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 24, 100])
def test_one_window_is_the_encoder(encoder, window):
    feats = torch.randn(1, 99, 20)
    expected, *_ = encoder(feats, torch.tensor([99]))
    if isinstance(expected, tuple):
        expected = expected[0]
    torch.testing.assert_close(encode_in_windows(encoder, feats, window), expected)


@torch.no_grad()
def test_each_frame_comes_from_the_middle_of_its_window(encoder):
    feats = torch.randn(1, 99, 20)
    out = encode_in_windows(encoder, feats, window=8)
    assert out.shape == (1, 24, 16)
    for (first, last), (start, stop) in overlapping_windows(24, 8):
        # conv2d sees 7 features for a frame, and the next 4 later.
        piece = feats[:, 4 * first : 4 * (last - 1) + 7]
        alone = encode_in_windows(encoder, piece)
        torch.testing.assert_close(
            out[:, start:stop], alone[:, start - first : stop - first]
        )


@torch.no_grad()
def test_progress_adds_up_and_hooks_are_gone(encoder):
    done = []
    encode_in_windows(encoder, torch.randn(1, 99, 20), window=8, progress=done.append)
    assert len(done) == 2 * len(overlapping_windows(24, 8))
    assert sum(done) == pytest.approx(1)
    assert not any(block._forward_hooks for block in encoder.encoders)
