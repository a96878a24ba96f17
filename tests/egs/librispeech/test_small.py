"""The corpus of docs/accuracy.md, out of directories of the forms of its sources."""

import sys
import tarfile
from collections import Counter

import numpy as np
import pytest
import soundfile
from espnet3.components.data.dataset_module import load_dataset_module

from .conftest import RECIPE_DIR
from .server import serve

small = sys.modules[
    load_dataset_module(recipe_dir=RECIPE_DIR).CORPORA["small"].__module__
]
SELECTION = """\
train-small/9001/100 a0001 a0002_20
train-small/9002/200 LJ001-0001
dev-small/20001/1 SPEAKER0001
test-small/9001/100 b0003
test-other/1688/142285 1688-142285
"""
SUBSETS = ["train-small", "dev-small", "test-small", "test-other"]


def write(path, hertz: int, rate: int, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tone = 0.1 * np.sin(2 * np.pi * hertz * np.arange(rate) / rate)
    soundfile.write(path, np.stack([tone] * channels, axis=1), rate)


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """What is selected, and for each source something that is not."""
    selection = tmp_path / "selection.txt"
    selection.write_text(SELECTION)
    monkeypatch.setattr(small, "SELECTION", selection)
    root = tmp_path / "sources"
    data = root / "dataset-voice-kathleen-c51cb97" / "data"
    takes = ("a0001_10", "a0001_20", "a0002_10", "a0002_20", "b0003_10", "b0004_10")
    for number, name in enumerate(takes):
        write(data / f"arctic_{name}.wav", 100 * (number + 1), 48000, channels=2)
        (data / f"arctic_{name}.txt").write_text('Don\'t, half-grown O’Brien: "GO"!')
    lj = root / "LJSpeech-1.1"
    write(lj / "wavs" / "LJ001-0001.wav", 700, 22050)
    (lj / "metadata.csv").write_text(
        "LJ001-0001|The 2 debtors' side|The two debtors' side\n"
        "LJ001-0002|not here|not here\n"
    )
    ocean = root / "speechocean762-613968e"
    for name in ("000010011", "000010035", "000010099"):
        write(ocean / "WAVE" / "SPEAKER0001" / f"{name}.WAV", 800, 16000)
    for subset, text in (
        ("train", "000010035\tA BOOK\n000010011\tWE CALL IT BEAR\n"),
        ("test", "000030001\tNOT HERE\n"),
    ):
        (ocean / subset).mkdir()
        (ocean / subset / "text").write_text(text)
    chapter = root / "LibriSpeech" / "test-other" / "1688" / "142285"
    names = [f"1688-142285-{number:04}" for number in range(12)]
    for name in names:
        write(chapter / f"{name}.flac", 900, 16000)
    lines = [f"{name} IT'S GOOD\n" for name in names]
    (chapter / "1688-142285.trans.txt").write_text("".join(lines))
    return root


def transcripts(corpus, chapter: str) -> dict[str, str]:
    (file,) = (corpus / chapter).glob("*.trans.txt")
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


def test_subsets_are_written(sources, dataset_module, tmp_path):
    builder = dataset_module.DatasetBuilder()
    corpus = tmp_path / "small"
    arguments = {
        "corpus": "small",
        "source_dir": corpus,
        "corpus_conf": {"sources": str(sources)},
    }
    assert not builder.is_source_prepared(**arguments)
    builder.prepare_source(**arguments)
    assert builder.is_source_prepared(**arguments)
    assert sorted(path.name for path in corpus.iterdir()) == sorted(SUBSETS)
    # Every file is whole, and mono at 16 kHz.
    builder.build(**arguments, data_dir=tmp_path / "data", splits=SUBSETS)

    text = "DON'T HALF GROWN O'BRIEN GO"
    chapter = "train-small/9001/100"
    assert transcripts(corpus, chapter) == {
        "9001-100-0000": text,
        "9001-100-0001": text,
    }
    for number, hertz in ((0, 100), (1, 400)):
        name = f"9001-100-{number:04}.flac"
        samples, _ = soundfile.read(corpus / chapter / name)
        tone = 0.1 * np.sin(2 * np.pi * hertz * np.arange(16000) / 16000)
        np.testing.assert_allclose(samples[200:-200], tone[200:-200], atol=1e-3)
    assert transcripts(corpus, "train-small/9002/200") == {
        "9002-200-0000": "THE TWO DEBTORS SIDE"
    }
    assert transcripts(corpus, "dev-small/20001/1") == {
        "20001-1-0000": "WE CALL IT BEAR",
        "20001-1-0001": "A BOOK",
    }
    theirs = sources / "LibriSpeech" / "test-other" / "1688" / "142285"
    ours = corpus / "test-other" / "1688" / "142285"
    assert len(transcripts(corpus, "test-other/1688/142285")) == 10
    for audio in ours.glob("*.flac"):
        assert audio.read_bytes() == (theirs / audio.name).read_bytes()


@pytest.fixture
def server(sources, tmp_path, monkeypatch):
    """What the sources are downloaded from."""
    files = {}
    for pattern in small.URLS:
        (directory,) = sources.glob(pattern)
        top = sources / directory.relative_to(sources).parts[0]
        archive = tmp_path / f"{top.name}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(top, top.name)
        files[archive.name] = archive.read_bytes()
    with serve(files) as server:
        for pattern, name in zip(small.URLS, files, strict=True):
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            monkeypatch.setitem(small.URLS, pattern, url)
        yield server


def test_sources_are_downloaded(server, dataset_module, tmp_path):
    corpus = tmp_path / "small"
    dataset_module.DatasetBuilder().prepare_source(corpus, "small")
    assert sorted(path.name for path in corpus.iterdir()) == sorted(SUBSETS)
    assert [name for name, _ in server.requests] == list(server.files)


def test_other_parts_of_a_source_stay(server, sources, tmp_path):
    theirs = sources / "LibriSpeech"
    (theirs / "test-other").rename(theirs / "train-clean-100")
    small.SmallCorpus(tmp_path / "small", sources).prepare()
    parts = sorted(path.name for path in theirs.iterdir())
    assert parts == ["test-other", "train-clean-100"]
    assert [name for name, _ in server.requests] == ["LibriSpeech.tar.gz"]


def test_a_source_that_lacks_something_is_named(sources, dataset_module, tmp_path):
    for file in sources.glob("*/data/arctic_b0003*"):
        file.unlink()
    corpus = small.SmallCorpus(tmp_path / "small", sources)
    with pytest.raises(FileNotFoundError, match="has no arctic_b0003"):
        corpus.prepare()
    assert not corpus.is_prepared()


def test_nothing_is_selected_twice():
    subsets = Counter()
    selected = []
    for line in small.SELECTION.read_text().splitlines():
        directory, *names = line.split()
        subset, speaker, chapter = directory.split("/")
        selected += names
        size = {"SPEAKER": 20, f"{speaker}-": 10}
        sizes = [size.get(name.rstrip("0123456789"), 1) for name in names]
        subsets[subset] += sum(sizes)
    assert subsets == {
        "train-small": 2120,
        "dev-small": 160,
        "test-small": 265,
        "test-other": 100,
    }
    assert len(set(selected)) == len(selected)
