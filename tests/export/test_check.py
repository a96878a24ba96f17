import pytest
import torch

from espnet_fastformer.export.check import compare
from espnet_fastformer.export.experiment import load_experiment
from tests.inference.models import CHARACTERS, TRANSDUCER, make_experiment


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    exp = make_experiment(tmp_path_factory.mktemp("check") / "exp")
    return load_experiment(exp / "config.yaml", exp / "valid.cer_ctc.ave.pth")


def test_experiment(experiment):
    assert experiment.num_feats == 20
    assert experiment.fs == 16000
    assert experiment.metadata["token_list"] == CHARACTERS
    assert experiment.metadata["frontend_conf"]["hop_length"] == 160
    assert experiment.metadata["speech_volume_normalize"] is None
    assert not experiment.module.training


def test_metadata_tell_what_a_program_needs(tmp_path):
    exp = make_experiment(tmp_path / "exp", speech_volume_normalize=0.5, **TRANSDUCER)
    metadata = load_experiment(
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
    assert difference.posterior > 0.1
    assert difference.tokens > 0.5

    def other_lengths(feats, lengths):
        log_probs, olens = experiment.module(feats, lengths)
        return log_probs, torch.full_like(olens, log_probs.size(1))

    with pytest.raises(ValueError, match="in the file, but"):
        compare(experiment.module, other_lengths, *args)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(wrong, experiment):
    def wrong_at_the_end(feats, lengths):
        log_probs, olens = experiment.module(feats, lengths)
        log_probs[-1, olens[-1] - 1, 0] = wrong
        return log_probs, olens

    with pytest.raises(ValueError, match="infinite or no number"):
        compare(experiment.module, wrong_at_the_end, experiment.frontend, experiment.fs)
