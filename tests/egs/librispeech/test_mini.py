"""Mini LibriSpeech, from a server on this machine that serves archives of its form."""

import hashlib
import sys
import tarfile

import gdown
import numpy as np
import pytest
import requests
import soundfile
from espnet3.components.data.dataset_module import load_dataset_module

from .conftest import RECIPE_DIR
from .server import serve

mini = sys.modules[
    load_dataset_module(recipe_dir=RECIPE_DIR).CORPORA["mini"].__module__
]
SPEAKERS = {"train-clean-5": (19, 26, 118), "dev-clean-2": (84, 174, 251, 1272, 652)}


@pytest.fixture
def server(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    files = {}
    for subset, speakers in SPEAKERS.items():
        root = tmp_path / "made" / "LibriSpeech"
        for speaker in speakers:
            chapter = root / subset / str(speaker) / "7"
            chapter.mkdir(parents=True)
            name = f"{speaker}-7-0000"
            noise = rng.uniform(-0.5, 0.5, 16 * 16000)
            soundfile.write(chapter / f"{name}.flac", noise, 16000)
            (chapter / f"{speaker}-7.trans.txt").write_text(f"{name} HELLO\n")
        (root / "LICENSE.TXT").write_text("CC BY 4.0\n")
        archive = tmp_path / f"{subset}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(root / subset, f"LibriSpeech/{subset}")
            tar.add(root / "LICENSE.TXT", "LibriSpeech/LICENSE.TXT")
        body = archive.read_bytes()
        files[archive.name] = body
        monkeypatch.setitem(mini.MD5, archive.name, hashlib.md5(body).hexdigest())
    # Otherwise gdown waits and tries again by itself.
    monkeypatch.setattr(sys.modules[mini.download.__module__], "RETRIES", 0)
    with serve(files) as server:
        yield server


@pytest.fixture
def arguments(server, tmp_path):
    return {
        "corpus": "mini",
        "source_dir": tmp_path / "mini",
        "corpus_conf": {"base_url": f"http://127.0.0.1:{server.server_port}/31"},
    }


def speakers_of(arguments, subset):
    return {int(path.name) for path in (arguments["source_dir"] / subset).iterdir()}


def test_download_gives_a_whole_corpus(server, arguments, dataset_module, tmp_path):
    builder = dataset_module.DatasetBuilder()
    assert not builder.is_source_prepared(**arguments)
    builder.prepare_source(**arguments)
    assert builder.is_source_prepared(**arguments)
    names = {path.name for path in arguments["source_dir"].iterdir()}
    splits = [s for ss in dataset_module.CORPORA["mini"].splits.values() for s in ss]
    assert names == {*splits, "LICENSE.TXT"}
    builder.build(**arguments, data_dir=tmp_path / "data", splits=splits)
    assert builder.is_built(**arguments, data_dir=tmp_path / "data", splits=splits)
    assert [name for name, _ in server.requests] == list(mini.MD5)


def test_validation_and_test_share_no_speaker(arguments, dataset_module):
    dataset_module.DatasetBuilder().prepare_source(**arguments)
    assert speakers_of(arguments, "train-clean-5") == set(SPEAKERS["train-clean-5"])
    assert speakers_of(arguments, "dev-clean-2-valid") == {84, 251, 1272}
    assert speakers_of(arguments, "dev-clean-2-test") == {174, 652}


def test_interrupted_download_goes_on(server, arguments, dataset_module):
    builder = dataset_module.DatasetBuilder()
    server.cut["train-clean-5.tar.gz"] = 1_000_000
    with pytest.raises(gdown.exceptions.DownloadError, match="incomplete"):
        builder.prepare_source(**arguments)
    assert not builder.is_source_prepared(**arguments)
    server.cut.clear()
    builder.prepare_source(**arguments)
    assert builder.is_source_prepared(**arguments)
    starts = [start for name, start in server.requests if "train" in name]
    assert starts[0] == 0 < starts[-1] <= 1_000_000


def test_wrong_checksum_is_named(server, arguments, dataset_module):
    builder = dataset_module.DatasetBuilder()
    whole = server.files["dev-clean-2.tar.gz"]
    server.files["dev-clean-2.tar.gz"] = whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(OSError, match=r"dev-clean-2\.tar\.gz has MD5"):
        builder.prepare_source(**arguments)
    assert not (arguments["source_dir"] / "dev-clean-2-test").exists()
    server.files["dev-clean-2.tar.gz"] = whole
    builder.prepare_source(**arguments)
    assert builder.is_source_prepared(**arguments)
    # What was whole the first time is not downloaded again.
    assert [name for name, _ in server.requests].count("train-clean-5.tar.gz") == 1


def test_interrupted_unpacking_starts_over(arguments, dataset_module, monkeypatch):
    builder = dataset_module.DatasetBuilder()
    rename = mini.Path.rename

    def stop_before_test(path, target):
        if target == arguments["source_dir"] / "dev-clean-2-test":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as context:
        context.setattr(mini.Path, "rename", stop_before_test)
        with pytest.raises(KeyboardInterrupt):
            builder.prepare_source(**arguments)
    assert not builder.is_source_prepared(**arguments)
    builder.prepare_source(**arguments)
    assert speakers_of(arguments, "dev-clean-2-valid") == {84, 251, 1272}
    assert speakers_of(arguments, "dev-clean-2-test") == {174, 652}


def test_archive_cannot_write_outside(server, arguments, dataset_module, tmp_path):
    archive = tmp_path / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(archive.parent / "made" / "LibriSpeech" / "LICENSE.TXT", "../../evil")
    body = server.files["train-clean-5.tar.gz"] = archive.read_bytes()
    mini.MD5["train-clean-5.tar.gz"] = hashlib.md5(body).hexdigest()
    with pytest.raises(tarfile.OutsideDestinationError):
        dataset_module.DatasetBuilder().prepare_source(**arguments)


def test_missing_archive_names_its_address(server, arguments, dataset_module):
    del server.files["train-clean-5.tar.gz"]
    with pytest.raises(requests.HTTPError, match="31/train-clean-5.tar.gz"):
        dataset_module.DatasetBuilder().prepare_source(**arguments)
