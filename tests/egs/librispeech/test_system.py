"""What the stages keep of earlier runs, and what they do anew."""

import contextlib
import resource
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from src import system
from src.lock import lock

from .conftest import RECIPE_DIR
from .recipe import PREPARATION, Recipe


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
    # As if the byte pairs of the repaired corpus gave it another length.
    (train.parent / "valid" / "split.0" / "text_shape").write_text("0 999\n")

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
    assert "999" not in (train.parent / "valid" / "text_shape").read_text()

    before = [path.stat().st_mtime_ns for path in (train / "token_shape", tokens)]
    recipe.run("--stages", *PREPARATION)
    after = [path.stat().st_mtime_ns for path in (train / "token_shape", tokens)]
    assert after == before

    # As after a kill in the middle of the stage.
    for done in (train / "token_shape", train / "split.0" / "done"):
        done.unlink()
    (train / "split.0" / "lock").touch()
    recipe.run("--stages", "collect_stats")
    assert len((train / "token_shape").read_text().splitlines()) == 4


def test_characters_are_counted_as_by_asr_sh(tmp_path):
    tokens = tmp_path / "tokens.txt"
    system._write_characters("BA A\nC \u00dc\nA", tokens)
    expected = ["<blank>", "<unk>", "A", "<space>", "B", "C", "\u00dc", "<sos/eos>", ""]
    assert tokens.read_text(encoding="utf-8").split("\n") == expected


@contextlib.contextmanager
def full_disk(size: int):
    """Let no file grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("token_type", ["char", "bpe"])
def test_piece_of_a_token_list_is_none(tmp_path, monkeypatch, token_type):
    text = "THE QUICK BROWN FOX JUMPS OVER A LAZY DOG"
    tokenizer = {"model_type": token_type, "vocab_size": 31, "save_path": str(tmp_path)}
    config = {"exp_dir": str(tmp_path), "dataset": {"train": []}}
    asr = system.LibriSpeechSystem(OmegaConf.create(config | {"tokenizer": tokenizer}))
    monkeypatch.setattr(asr, "_require", lambda *_: None)
    monkeypatch.setattr(system, "_utterances", lambda *_: [SimpleNamespace(text=text)])

    def write_tokens(text, directory, vocab_size):
        directory.mkdir(exist_ok=True)
        (directory / "tokens.txt").write_text("<blank>\n<unk>\n" * vocab_size)

    with monkeypatch.context() as context, full_disk(len(text)):
        context.setattr(system, "train_sentencepiece", write_tokens)
        with pytest.raises(OSError):
            asr.train_tokenizer()
    asr.train_tokenizer()
    tokens = (tmp_path / "tokens.txt").read_text().split()
    assert tokens[0] == "<blank>" and tokens[-1] == "<sos/eos>"


def test_audio_that_is_gone_is_named(an4_corpus, tmp_path):
    corpus = an4_corpus._replace(source_dir=tmp_path / "corpus")
    shutil.copytree(an4_corpus.source_dir, corpus.source_dir)
    recipe = Recipe(tmp_path, "fastformer", corpus)
    recipe.run("--stages", *PREPARATION)
    audio = corpus.source_dir / corpus.train / "mwhw" / "1" / "mwhw-1-0001.sph"
    audio.unlink()
    message = f"run.py: Cannot read {audio}: Error opening"
    output = recipe.fail("--stages", "train")
    assert message in output and "Traceback" not in output
    (shapes,) = tmp_path.glob("data/*/stats_*/train/token_shape")
    shapes.unlink()
    output = recipe.fail("--stages", "collect_stats")
    assert message in output and "Traceback" not in output


def test_scores_are_of_one_model_and_search(tmp_path):
    made_from = {
        "a": ("new", {"beam_size": 2}),
        "b": ("new", {"beam_size": 2}),
        "older": ("old", {"beam_size": 2}),
        "wider": ("new", {"beam_size": 9}),
        "unfinished": ("new", {"beam_size": 2}),
    }
    for name, (checkpoint, model) in made_from.items():
        config = {"model": model, "dataset": {"name": name}}
        record = {"checkpoint": checkpoint, "config": config}
        (tmp_path / name).mkdir()
        OmegaConf.save(OmegaConf.create(record), tmp_path / name / "made_from.yaml")
        if name != "unfinished":
            (tmp_path / name / "text.scp").touch()
    find = system._find_decoded_alike
    assert find(tmp_path, ["a"]) == ("new", [{"name": "b"}])
    assert find(tmp_path, ["b", "a"]) == ("new", [])
    assert find(tmp_path, ["older"]) == ("old", [])
    with pytest.raises(ValueError, match=r"older, wider and a were not decoded by"):
        find(tmp_path, ["a", "older", "wider"])


@pytest.mark.parametrize(("samples", "workers"), [(10**15, 0), (16000, 4)])
def test_batches_fit_into_shared_memory(tmp_path, samples, workers):
    system.check_shared_memory(loaders(tmp_path, samples, workers), str(tmp_path))


def test_too_little_shared_memory_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"--num_workers 1 needs .* --shm-size=\d+g"):
        system.check_shared_memory(loaders(tmp_path, 10**15, 1), str(tmp_path))


def loaders(directory, samples: int, workers: int):
    shapes = directory / "speech_shape"
    shapes.write_text(f"0 {samples}\n1 8000\n")
    batches = {
        "type": "unsorted",
        "batch_size": 2,
        "batch_bins": 1,
        "shape_files": [str(shapes)],
    }
    part = {"iter_factory": {"num_workers": workers, "batches": batches}}
    config = {"num_nodes": 1, "dataloader": {"train": part, "valid": part}}
    return OmegaConf.create(config)


def test_experiment_of_another_run_is_left_alone(main, tmp_path, capsys):
    code = "import sys, src.lock as s; s.lock(s.Path(sys.argv[1])); print(); input()"
    exp_dir = tmp_path / "exp"
    other = subprocess.Popen(
        [sys.executable, "-c", code, exp_dir],
        cwd=RECIPE_DIR,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout.readline()
    with pytest.raises(SystemExit):
        main(["--exp_dir", str(exp_dir)])
    assert "is in use by another run" in capsys.readouterr().err
    assert [path.name for path in exp_dir.iterdir()] == [".running"]
    other.communicate(b"\n")
    lock(exp_dir)


def test_piece_of_a_copied_checkpoint_is_not_gone_on_from(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"PK")
    torch.save({}, tmp_path / "step3.ckpt")
    assert system._last_checkpoint(tmp_path) == tmp_path / "step3.ckpt"


def test_checkpoint_without_its_settings_is_not_gone_on_from(tmp_path):
    config = OmegaConf.create(
        {
            "exp_dir": str(tmp_path),
            "model": {"token_list": "tokens.txt"},
            "trainer": {"accumulate_grad_batches": 1, "gradient_clip_val": 5.0},
        }
    )
    last = tmp_path / "last.ckpt"
    with pytest.raises(ValueError, match=f"{last} has no trained_with.json beside it"):
        system._refuse_other_settings(config, last)
    system._refuse_other_settings(config, None)
    system._refuse_other_settings(config, last)
