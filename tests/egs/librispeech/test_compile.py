"""Training with compiled blocks, in the recipe."""

import shutil

import pytest

from .recipe import PREPARATION, Recipe


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_losses_are_those_without(an4_corpus, tmp_path, monkeypatch):
    recipe = Recipe(tmp_path, "fastformer", an4_corpus)
    recipe.run("--stages", *PREPARATION)
    options = (
        *("--stages", "train", "--max_epoch", "2", "--log_interval", "1"),
        *("--batch_type", "unsorted", "--batch_size", "2"),
        *("--accum_grad", "1", "--use_amp", "false"),
    )
    code = tmp_path / "code"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(code))
    recipe.run(*options, exp="eager")
    assert not list(code.rglob("*.so"))
    recipe.run(*options, "--encoder_conf", "compile=true", exp="compiled")
    assert list(code.rglob("*.so"))
    eager, compiled = recipe.curves("eager"), recipe.curves("compiled")
    assert len(eager["train/loss"]) == 4 and len(eager["valid/loss"]) == 2
    assert len(set(eager["train/loss"].values())) > 2
    for name in ("train/loss", "train/loss_ctc", "valid/loss"):
        assert compiled[name] == pytest.approx(eager[name], rel=1e-4)
