import pytest
import torch

from espnet_fastformer.export.check import compare
from espnet_fastformer.export.exportable import load_exportable
from tests.inference.models import CHARACTERS, TRANSDUCER, make_experiment


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    exp = make_experiment(tmp_path_factory.mktemp("check") / "exp")
    return load_exportable(exp / "config.yaml", exp / "valid.cer_ctc.ave.pth")


def test_experiment(experiment):
    assert experiment.num_feats == 20
    assert experiment.fs == 16000
    assert experiment.metadata["token_list"] == CHARACTERS
    assert experiment.metadata["frontend_conf"]["hop_length"] == 160
    assert experiment.metadata["speech_volume_normalize"] is None
    assert not experiment.module.training


def test_metadata_tell_what_a_program_needs(tmp_path):
    exp = make_experiment(tmp_path / "exp", speech_volume_normalize=0.5, **TRANSDUCER)
    metadata = load_exportable(
        exp / "config.yaml", exp / "valid.cer_ctc.ave.pth"
    ).metadata
    # The first is what CTC was trained with.
    assert metadata["token_list"] == ["<blank2>", *CHARACTERS]
    assert metadata["blank_id"] == 0
    assert metadata["speech_volume_normalize"] == 0.5


def test_the_model_equals_itself(experiment):
    args = (experiment.frontend, experiment.fs)
    assert compare(experiment.module, experiment.module, *args) == (0.0, 0.0)


def test_differences_are_found(experiment):
    args = (experiment.frontend, experiment.fs)

    def reversed_tokens(feats, lengths):
        log_probs, olens = experiment.module(feats, lengths)
        return log_probs.flip(-1), olens

    difference = compare(experiment.module, reversed_tokens, *args)
    assert difference.largest > difference.average > 0.1

    def other_lengths(feats, lengths):
        log_probs, olens = experiment.module(feats, lengths)
        return log_probs, torch.full_like(olens, log_probs.size(1))

    with pytest.raises(ValueError, match="in the file, but"):
        compare(experiment.module, other_lengths, *args)


def test_difference_is_that_of_probabilities(experiment):
    args = (experiment.frontend, experiment.fs)

    gained = []

    def half_to_the_first(feats, lengths):
        log_probs, olens = experiment.module(feats, lengths)
        probs = log_probs.exp() / 2
        for row, olen in zip(probs, olens, strict=True):
            gained.append(0.5 - row[:olen, 0])
        probs[..., 0] += 0.5
        return probs.log(), olens

    difference = compare(experiment.module, half_to_the_first, *args)
    gained = torch.cat(gained)
    assert difference.average == pytest.approx(gained.mean().item(), abs=1e-5)
    assert difference.largest == pytest.approx(gained.max().item(), abs=1e-5)


@pytest.mark.parametrize(
    "encoder_conf, frontend_conf",
    [
        ({"input_layer": "conv2d8"}, {"hop_length": 512}),
        ({"input_layer": "linear"}, {}),
    ],
)
def test_lengths_are_those_that_a_file_takes(encoder_conf, frontend_conf, tmp_path):
    frontend_conf = {"n_fft": 512, "hop_length": 160, "n_mels": 20} | frontend_conf
    exp = make_experiment(tmp_path / "exp", encoder_conf, frontend_conf=frontend_conf)
    model = load_exportable(exp / "config.yaml", exp / "valid.cer_ctc.ave.pth")
    lengths = []

    def watched(feats, feats_lengths):
        log_probs, olens = model.module(feats, feats_lengths)
        lengths.append(feats_lengths.tolist())
        assert olens.min() >= 2
        return log_probs, olens

    assert compare(model.module, watched, model.frontend, model.fs) == (0.0, 0.0)
    (shortest,), (longest,), padded = lengths
    assert shortest == min(padded) < max(padded) < longest


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(wrong, experiment):
    def wrong_at_the_end(feats, lengths):
        log_probs, olens = experiment.module(feats, lengths)
        log_probs[-1, olens[-1] - 1, 0] = wrong
        return log_probs, olens

    with pytest.raises(ValueError, match="infinite or no number"):
        compare(experiment.module, wrong_at_the_end, experiment.frontend, experiment.fs)
