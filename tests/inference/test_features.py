from types import SimpleNamespace

import numpy as np
import pytest
import torch
from espnet2.asr.frontend.cnn import CNNFrontend
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.layers.global_mvn import GlobalMVN
from espnet2.layers.utterance_mvn import UtteranceMVN

from espnet_fastformer.encoder.input_layer import SUBSAMPLING
from espnet_fastformer.inference.features import (
    TooShortError,
    extract_features,
    least_samples,
    normalize_features,
    prepare_recording,
)
from espnet_fastformer.layers import pieces
from tests.encoder.encoders import FEATURES, build
from tests.inference.models import CONVOLUTIONS
from tests.layers.memory import allocated

# Dereverberation, which estimates its filter from all frames.
WPE = {"use_wpe": True, "wlayers": 1, "wunits": 8, "wprojs": 8}


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(pieces, "FRAMES_AT_ONCE", 7)


@pytest.mark.parametrize(
    "options",
    [
        {"hop_length": 128},
        {"hop_length": 160, "win_length": 400},
        {"hop_length": 256, "center": False},
        {"n_fft": 400, "hop_length": 300, "normalized": True},
        {"n_fft": 401, "hop_length": 160},
        {"hop_length": 512},
    ],
)
@torch.no_grad()
def test_pieces_give_the_whole(options):
    frontend = DefaultFrontend(n_mels=20, **options)
    hop = options["hop_length"]
    shortest = 257 if frontend.stft.center else 512
    lengths = [shortest, 513, 7 * hop, *range(14 * hop - 2, 14 * hop + 2), 9001, 30000]
    for length in lengths:
        speech = torch.randn(length)
        expected, frames = frontend(speech.unsqueeze(0), torch.tensor([length]))
        actual = extract_features(frontend, speech)
        assert actual.size(1) == int(frames[0])
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_other_frontends_get_the_whole():
    speech = torch.randn(5000)
    for frontend in (
        DefaultFrontend(n_mels=20, frontend_conf=WPE),
        CNNFrontend(**CONVOLUTIONS["frontend_conf"]),
    ):
        expected, _ = frontend(speech.unsqueeze(0), torch.tensor([5000]))
        torch.testing.assert_close(extract_features(frontend, speech), expected)


@pytest.mark.parametrize("length", [0, 1, 200, 256])
def test_less_than_a_window_gives_no_frame(length):
    for frontend in (
        DefaultFrontend(n_mels=20),
        DefaultFrontend(n_mels=20, frontend_conf=WPE),
        CNNFrontend(**CONVOLUTIONS["frontend_conf"]),
    ):
        feats = extract_features(frontend, torch.randn(length))
        assert feats.shape == (1, 0, 20)
    assert normalize_features(UtteranceMVN(), feats).shape == (1, 0, 20)


@pytest.mark.parametrize("input_layer", [*SUBSAMPLING, "linear"])
@pytest.mark.parametrize(
    "options",
    [{}, {"hop_length": 512}, {"n_fft": 401}, {"center": False, "win_length": 400}],
)
@torch.no_grad()
def test_least_samples_give_an_output_frame(input_layer, options):
    frontend = DefaultFrontend(n_mels=FEATURES, **options)
    encoder = build("fastformer", input_layer=input_layer)
    model = SimpleNamespace(frontend=frontend, encoder=encoder)
    least = least_samples(model)
    feats = extract_features(frontend, torch.randn(least))
    _, olens, _ = encoder(feats, torch.tensor([feats.size(1)]))
    # More samples are mirrored than these frames need without subsampling.
    assert olens == 1 or input_layer == "linear"
    with pytest.raises(TooShortError):
        prepare_recording(model, torch.randn(least - 1), 16000, None)


def test_least_samples_of_other_frontends():
    frontend = CNNFrontend(**CONVOLUTIONS["frontend_conf"])
    encoder = build("fastformer", input_layer="conv2d8")
    model = SimpleNamespace(frontend=frontend, encoder=encoder)
    assert least_samples(model) == 1600


@pytest.fixture
def normalizations(tmp_path):
    stats = {"count": 10, "sum": np.arange(20.0), "sum_square": 50.0 + np.arange(20)}
    np.savez(tmp_path / "stats.npz", **stats)
    return [
        GlobalMVN(tmp_path / "stats.npz"),
        UtteranceMVN(),
        UtteranceMVN(norm_means=False, norm_vars=True),
        UtteranceMVN(norm_vars=True),
    ]


def test_normalization_is_espnets(normalizations):
    feats = 3 + torch.randn(1, 40, 20)
    for normalize in normalizations:
        expected, _ = normalize(feats.clone(), torch.tensor([40]))
        actual = normalize_features(normalize, feats.clone())
        torch.testing.assert_close(actual, expected)
    assert normalize_features(None, feats) is feats


@torch.no_grad()
def test_memory_is_linear_in_time(normalizations):
    frontend = DefaultFrontend(n_mels=20)

    def largest(frames):
        speech = torch.randn(128 * frames)

        def run():
            feats = extract_features(frontend, speech)
            for normalize in normalizations:
                normalize_features(normalize, feats.clone())

        return allocated(run).largest

    assert largest(4000) < 4.2 * largest(1000)
