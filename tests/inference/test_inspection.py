import numpy as np
import pytest
import torch
from espnet2.main_funcs.calculate_all_attentions import calculate_all_attentions
from espnet2.tasks.asr import ASRTask

from espnet_fastformer.inference import inspection
from espnet_fastformer.inference.inspection import inspect_recording
from tests.inference.models import CONVOLUTIONS, SMALL, make_experiment, noise
from tests.integration.test_asr_task import ENCODERS

FS = 16000


def load(path, name="fastformer", encoder_conf=None, **options) -> torch.nn.Module:
    conf = {**ENCODERS.get(name, {}), **(encoder_conf or {})}
    exp = make_experiment(path / name, conf, encoder=name.split("-")[0], **options)
    model, _ = ASRTask.build_model_from_file(
        exp / "config.yaml", exp / "valid.cer_ctc.ave.pth"
    )
    return model.eval()


@pytest.mark.parametrize("name", ENCODERS)
def test_the_weights_are_those_that_espnet_plots(name, tmp_path):
    model = load(tmp_path, name)
    speech = noise(2)
    shown = inspect_recording(model, speech, FS)
    batch = {
        "speech": torch.from_numpy(speech)[None],
        "speech_lengths": torch.tensor([len(speech)]),
        "text": torch.tensor([[3, 4]]),
        "text_lengths": torch.tensor([2]),
    }
    plotted = {
        name.removeprefix("encoder."): weights
        for name, (weights,) in calculate_all_attentions(model, batch).items()
        if name.startswith("encoder.") and not name.endswith(".position_bias")
    }
    assert len(plotted) >= SMALL["num_blocks"]
    assert shown.weights.keys() == plotted.keys()
    for key, weights in plotted.items():
        torch.testing.assert_close(shown.weights[key], weights)
        assert weights.size(1) == shown.frames


@pytest.mark.parametrize("input_layer", ["conv2d", "conv2d1", "conv1d3", "linear"])
def test_weights_lie_under_what_they_belong_to(input_layer, tmp_path):
    model = load(tmp_path, encoder_conf={"input_layer": input_layer})
    shown = inspect_recording(model, noise(2), FS)
    assert shown.features.shape == (20, 201)
    assert shown.feature_span == pytest.approx((-0.005, 2.005))
    start, end = shown.frame_span
    # What an output frame sees lies symmetrically around it, at both ends.
    assert (end - start) / shown.frames == pytest.approx(
        {"conv2d": 0.04, "conv1d3": 0.03}.get(input_layer, 0.01)
    )
    margin = {"conv2d": 0.015, "conv2d1": 0.02, "conv1d3": 0.02, "linear": 0.0}
    assert start == pytest.approx(-0.005 + margin[input_layer])
    assert end == pytest.approx(2.005 - margin[input_layer], abs=0.04)


def test_windows_that_begin_at_their_first_sample(tmp_path):
    conf = {"n_fft": 512, "hop_length": 160, "n_mels": 20, "center": False}
    shown = inspect_recording(load(tmp_path, frontend_conf=conf), noise(2), FS)
    # The middle of the first is at 256 samples.
    assert shown.feature_span[0] == pytest.approx(0.016 - 0.005)
    assert shown.frame_span[0] == pytest.approx(0.016 - 0.005 + 0.02)


def test_a_frontend_that_does_not_tell_its_hop(tmp_path):
    model = load(tmp_path, **CONVOLUTIONS)
    shown = inspect_recording(model, noise(2), FS)
    assert shown.feature_span == pytest.approx((-0.005, 2.005), abs=0.02)
    with pytest.raises(ValueError, match="0.02 s of audio are too short"):
        inspect_recording(model, noise(0.02), FS)


def test_volume_is_normalised_as_in_training(tmp_path):
    model = load(tmp_path, normalize=None)
    loud = inspect_recording(model, noise(1), FS, volume=0.5)
    low = inspect_recording(model, noise(1) / 8, FS, volume=0.5)
    assert low.features.equal(loud.features)
    for name, weights in loud.weights.items():
        assert low.weights[name].equal(weights)


def test_long_recordings_keep_their_peaks(tmp_path, monkeypatch):
    model = load(tmp_path, encoder_conf={"input_layer": "linear"})
    pooled = inspect_recording(model, noise(30), FS)
    monkeypatch.setattr(inspection, "_COLUMNS", 5000)
    whole = inspect_recording(model, noise(30), FS)
    assert pooled.frames == whole.frames == 3001
    assert pooled.frame_span == whole.frame_span
    assert (pooled.features.size(1), whole.features.size(1)) == (2000, 3001)
    for name, weights in whole.weights.items():
        assert pooled.weights[name].size(1) == 2000
        assert pooled.weights[name].amax(1).equal(weights.amax(1))


def test_interctc_and_global_statistics(tmp_path):
    np.savez(
        tmp_path / "stats.npz", count=9, sum=np.zeros(20), sum_square=9 * np.ones(20)
    )
    model = load(
        tmp_path,
        encoder_conf={"interctc_layer_idx": [1], "interctc_use_conditioning": True},
        model_conf={"ctc_weight": 1.0, "interctc_weight": 0.5},
        normalize="global_mvn",
        normalize_conf={"stats_file": str(tmp_path / "stats.npz")},
    )
    assert len(inspect_recording(model, noise(1), FS).weights) == 4


def test_what_cannot_be_shown_is_named(tmp_path):
    model = load(tmp_path)
    with pytest.raises(ValueError, match="0.02 s of audio are too short"):
        inspect_recording(model, noise(0.02), FS)
    with pytest.raises(ValueError, match="too short"):
        inspect_recording(model, noise(0), FS)
    model = load(tmp_path, "e_branchformer", {"output_size": 16, "num_blocks": 1})
    with pytest.raises(ValueError, match="EBranchformerEncoder, not fastformer or aft"):
        inspect_recording(model, noise(1), FS)
    model = load(
        tmp_path, "aft", {"block_type": "branchformer", "use_attn": False, **SMALL}
    )
    with pytest.raises(ValueError, match="use_attn"):
        inspect_recording(model, noise(1), FS)
