"""The recipe in several processes, which it starts itself."""

import math

import numpy as np
import pytest
import torch

from .recipe import PREPARATION, Recipe, load

# Batches of an odd number, so that the processes' shares differ.
TRAINING = (
    *("--stages", "train", "--max_epoch", "2", "--log_interval", "1"),
    *("--batch_type", "unsorted", "--batch_size", "5", "--use_amp", "false"),
)


@pytest.fixture(scope="module")
def recipe(synthetic_corpus, tmp_path_factory) -> Recipe:
    # Its speech ends in silence, so that no frame depends on the other utterances of
    # its batch: ESPnet's STFT mirrors the end of the longest one alone.
    root = tmp_path_factory.mktemp("distributed")
    recipe = Recipe(root, "fastformer", synthetic_corpus)
    recipe.run("--stages", *PREPARATION)
    return recipe


def test_two_processes_train_as_one(recipe):
    recipe.run(*TRAINING, exp="one")
    recipe.run(*TRAINING, "--nproc", "2", exp="two")
    one, two = recipe.curves("one"), recipe.curves("two")
    for name in ("train/loss", "train/loss_ctc", "valid/loss"):
        assert len(one[name]) >= 2
        assert two[name] == pytest.approx(one[name], rel=1e-5)
    weights = load(recipe.root / "one" / "last.ckpt")["state_dict"]
    for name, weight in load(recipe.root / "two" / "last.ckpt")["state_dict"].items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-3, atol=1e-4)


def test_processes_may_drop_different_layers(recipe):
    recipe.run(
        *TRAINING,
        *("--encoder_conf", "num_blocks=4", "--encoder_conf", "layer_drop_rate=0.5"),
        *("--encoder_conf", "interctc_layer_idx=[1,2]"),
        *("--encoder_conf", "interctc_use_conditioning=true"),
        *("--model_conf", "interctc_weight=0.3", "--nproc", "2"),
        exp="layer_drop",
    )
    curves = recipe.curves("layer_drop")
    for name in ("train/loss_interctc_layer1", "train/loss_interctc_layer2"):
        assert curves[name].keys() == curves["train/loss"].keys()
        assert all(map(math.isfinite, curves[name].values()))


def test_workers_collect_the_same_statistics(recipe, tmp_path):
    options = ("--stages", *PREPARATION, "--data_dir", str(tmp_path))
    recipe.run(*options, "--nj", "2", exp="stats")
    (one,) = recipe.root.glob("data/*/stats_*")
    (two,) = tmp_path.glob("*/stats_*")
    assert len(list(two.glob("train/split.*"))) == 2
    for subset in ("train", "valid"):
        for name in ("speech_shape", "text_shape", "token_shape"):
            path = f"{subset}/{name}"
            assert (two / path).read_text() == (one / path).read_text()
        feats = [np.load(stats / subset / "feats_stats.npz") for stats in (one, two)]
        assert feats[0]["count"] == feats[1]["count"]
        for name in ("sum", "sum_square"):
            np.testing.assert_allclose(feats[1][name], feats[0][name], rtol=1e-5)
