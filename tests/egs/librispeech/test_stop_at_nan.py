"""A training that has come to no number ends, and leaves nothing behind."""

import torch
from espnet3.components.data.dataset import CombinedDataset
from src.stop_at_nan import _audio_files

from .recipe import PREPARATION, Recipe


def test_training_that_diverges_stops_before_its_checkpoint(an4_corpus, tmp_path):
    recipe = Recipe(tmp_path, "fastformer", an4_corpus)
    stages = ("--stages", *PREPARATION, "train")
    process = recipe.start(*stages, "--optim_conf", "lr=1.0e+30", "--accum_grad", "1")
    output, _ = process.communicate()
    assert process.returncode == 1, output
    message = output[output.rindex("run.py: ") :]
    assert "Traceback" not in output
    assert "of this batch is nan" in message or "of this batch is inf" in message
    named = [line.strip() for line in message.splitlines() if ".sph" in line]
    audio = [*an4_corpus.source_dir.glob("*/*/*/*.sph")]
    assert named and set(named) <= set(map(str, audio))
    assert "lower learning rate" in message
    assert not list(recipe.exp_dir.glob("*.ckpt"))
    assert not list(recipe.exp_dir.glob("*.pth"))

    # The same directory will do for a better try.
    recipe.run(*stages)
    (model,) = recipe.exp_dir.glob("*.ave.pth")
    parameters = torch.load(model, weights_only=True)
    assert all(parameter.isfinite().all() for parameter in parameters.values())


def test_files_of_the_batch_are_named(an4_corpus, dataset_module, tmp_path):
    subsets = [
        dataset_module.Dataset(subset, an4_corpus.source_dir, tmp_path)
        for subset in (an4_corpus.train, an4_corpus.test)
    ]
    dataset = CombinedDataset(subsets, [(None, None)] * 2)
    files = _audio_files(dataset, ["0", "3", "4", "5"])
    names = [file.rpartition("/")[2] for file in files]
    assert names == [
        "fash-1-0000.sph",
        "mwhw-1-0001.sph",
        "fcaw-1-0000.sph",
        "mmxg-1-0000.sph",
    ]
    assert len(dataset[4]["speech"]) == subsets[1].utterances[0].num_samples
