import pytest
import torch

from espnet_fastformer.export.check import compare
from espnet_fastformer.export.experiment import load_experiment
from tests.inference.models import CHARACTERS, make_experiment


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    exp = make_experiment(tmp_path_factory.mktemp("check") / "exp")
    return load_experiment(exp / "config.yaml", exp / "valid.cer_ctc.ave.pth")


def test_experiment(experiment):
    assert experiment.num_feats == 20
    assert experiment.fs == 16000
    assert experiment.metadata["token_list"] == CHARACTERS
    assert experiment.metadata["frontend_conf"]["hop_length"] == 160
    assert not experiment.module.training


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
