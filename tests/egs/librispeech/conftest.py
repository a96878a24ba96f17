"""Corpora that the tests of the recipe run on."""

import importlib.resources
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest
from espnet3.components.data.dataset_module import load_dataset_module
from tqdm import tqdm

RECIPE_DIR = Path(__file__).parents[3] / "egs" / "librispeech"
# As of run.py.
sys.path.insert(0, str(RECIPE_DIR))
TINY_SYNTHETIC = {"train_hours": 0.02, "dev_hours": 0.005, "test_hours": 0.005}


class Corpus(NamedTuple):
    """Root of a corpus in LibriSpeech's layout and the names of its subsets."""

    source_dir: Path
    train: str
    valid: str
    test: str


@pytest.fixture(autouse=True)
def bars(monkeypatch):
    """Leave bars to later tests as they were: a run changes them for its process."""
    monkeypatch.setattr(tqdm, "__init__", tqdm.__init__)


@pytest.fixture(scope="session")
def dataset_module():
    """The recipe's dataset package, loaded as ESPnet3 loads it."""
    return load_dataset_module(recipe_dir=RECIPE_DIR)


@pytest.fixture(scope="session")
def main():
    """The function that run.py calls."""
    import run

    return run.main


@pytest.fixture(scope="session")
def an4_corpus(tmp_path_factory) -> Corpus:
    """The transcribed recordings of AN4 in ESPnet's wheel, laid out as LibriSpeech.

    4 utterances to train on, 1 for validation and 2 for test, in SPHERE files.
    """
    root = tmp_path_factory.mktemp("an4")
    corpus = Corpus(root / "corpus", "train-an4", "dev-an4", "test-an4")
    archive = importlib.resources.files("egs3.mini_an4.esp2_asr") / "downloads.tar.gz"
    with importlib.resources.as_file(archive) as path, tarfile.open(path) as tar:
        tar.extractall(root, filter="data")
    an4 = root / "downloads" / "an4"
    counts = {}
    for part in ("train", "test"):
        for line in (an4 / "etc" / f"an4_{part}.transcription").open():
            text, recording = re.fullmatch(
                r"(?:<s> )?(.+?)(?: </s>)? \((.+)\)\n?", line
            ).groups()
            _, speaker, _ = recording.split("-")
            subset = corpus.valid if speaker == "fbbh" else f"{part}-an4"
            number = counts[speaker] = counts.get(speaker, -1) + 1
            utt_id = f"{speaker}-1-{number:04d}"
            chapter = corpus.source_dir / subset / speaker / "1"
            chapter.mkdir(parents=True, exist_ok=True)
            (audio,) = an4.glob(f"wav/*/{speaker}/{recording}.sph")
            shutil.copy(audio, chapter / f"{utt_id}.sph")
            with (chapter / f"{speaker}-1.trans.txt").open("a") as transcript:
                transcript.write(f"{utt_id} {text}\n")
    return corpus


@pytest.fixture(scope="session")
def synthetic_corpus(dataset_module, tmp_path_factory) -> Corpus:
    """About two minutes of synthetic speech, made by the recipe's builder."""
    corpus = Corpus(
        tmp_path_factory.mktemp("synthetic") / "corpus",
        "train-synthetic",
        "dev-synthetic",
        "test-synthetic",
    )
    dataset_module.DatasetBuilder().prepare_source(
        source_dir=corpus.source_dir,
        corpus="synthetic",
        corpus_conf={**TINY_SYNTHETIC, "n_workers": 1},
    )
    return corpus
