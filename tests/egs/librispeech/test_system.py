"""What the stages keep of earlier runs, and what they do anew."""

import importlib
import shutil

import pytest
from lightning.pytorch.utilities import rank_zero_only

from .conftest import RECIPE_DIR
from .recipe import PREPARATION, Recipe


@pytest.fixture
def system(monkeypatch):
    monkeypatch.syspath_prepend(RECIPE_DIR)
    return importlib.import_module("src.system")


def test_repaired_corpus_is_prepared_anew(an4_corpus, tmp_path):
    corpus = an4_corpus._replace(source_dir=tmp_path / "corpus")
    shutil.copytree(an4_corpus.source_dir, corpus.source_dir)
    chapter = corpus.source_dir / corpus.train / "fash" / "1"
    audio = chapter / "fash-1-0000.sph"
    whole = audio.read_bytes()
    audio.write_bytes(b"")
    transcripts = chapter / "fash-1.trans.txt"
    recipe = Recipe(tmp_path, "fastformer", corpus)
    recipe.options += ["--token_type", "bpe", "--nbpe", "30"]
    recipe.run("--stages", *PREPARATION, "--skip_broken_utterances")
    (train,) = tmp_path.glob("data/*/stats_*/train")
    (tokens,) = tmp_path.glob("data/*/token_list/bpe30/tokens.txt")
    assert len((train / "token_shape").read_text().splitlines()) == 3
    assert "\u00dc" not in tokens.read_text()

    audio.write_bytes(whole)
    text = transcripts.read_text().replace("fash-1-0000 ", "fash-1-0000 \u00dc ")
    transcripts.write_text(text)
    recipe.run("--stages", *PREPARATION)
    (manifest,) = tmp_path.glob(f"data/*/manifest/{corpus.train}.tsv")
    samples = [line.split("\t")[-1] for line in manifest.read_text().splitlines()[1:]]
    shapes = (train / "speech_shape").read_text().splitlines()
    assert len(samples) == 4
    assert [shape.split()[1] for shape in shapes] == samples
    assert len((train / "token_shape").read_text().splitlines()) == 4
    assert "\u00dc" in tokens.read_text()

    # Earlier versions kept no record.
    (train / "made_from.yaml").unlink()
    before = [path.stat().st_mtime_ns for path in (train / "token_shape", tokens)]
    recipe.run("--stages", *PREPARATION)
    after = [path.stat().st_mtime_ns for path in (train / "token_shape", tokens)]
    assert after == before


@pytest.mark.parametrize("rank", [0, 1])
def test_first_process_alone_restores_the_config(system, tmp_path, monkeypatch, rank):
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    config = tmp_path / "config.yaml"
    config.write_text("old")
    with (
        pytest.raises(ValueError, match="of another model"),
        system._refuse_other_model(tmp_path / "last.ckpt"),
    ):
        config.write_text("new")
        raise RuntimeError("Error(s) in loading state_dict")
    assert config.read_text() == ("old" if rank == 0 else "new")
