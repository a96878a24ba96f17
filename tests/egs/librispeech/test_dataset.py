"""The dataset as ESPnet3 builds it, on real recordings."""

import multiprocessing
import pickle

import numpy as np
import pytest
import soundfile
from espnet3.components.data.dataset_module import instantiate_dataset_reference

from .conftest import RECIPE_DIR


@pytest.fixture
def dataset_args(an4_corpus, tmp_path):
    return {
        "split": an4_corpus.test,
        "source_dir": str(an4_corpus.source_dir),
        "data_dir": str(tmp_path),
    }


def load(dataset_args, **options):
    return instantiate_dataset_reference(
        {"data_src_args": {**dataset_args, **options}}, recipe_dir=RECIPE_DIR
    )


def first_item(dataset):
    return dataset[0]


def test_items_are_the_recordings(an4_corpus, dataset_args):
    dataset = load(dataset_args)
    assert len(dataset) == 2
    item = dataset[0]
    assert item.keys() == {"speech", "text"}
    assert item["text"] == "ELEVEN TWENTY SEVEN FIFTY SEVEN"
    audio = an4_corpus.source_dir / "test-an4" / "fcaw" / "1" / "fcaw-1-0000.sph"
    expected, rate = soundfile.read(audio, dtype="int16")
    assert rate == 16000
    assert item["speech"].dtype == np.float32
    np.testing.assert_array_equal(item["speech"], expected / np.float32(32768))


def test_utterance_name_on_request(dataset_args):
    assert load(dataset_args, with_utt_id=True)[1]["utt_id"] == "mmxg-1-0000"


def test_spawned_worker_reads_the_same(dataset_args):
    dataset = load(dataset_args, with_utt_id=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        item = pool.apply(first_item, (dataset,))
    np.testing.assert_array_equal(item["speech"], dataset[0]["speech"])
    assert item["utt_id"] == dataset[0]["utt_id"]


def test_pickle_keeps_the_arguments(dataset_args):
    copy = pickle.loads(pickle.dumps(load(dataset_args)))
    assert len(copy) == 2
    assert "utt_id" not in copy[0]


def test_missing_subset_names_those_there(dataset_args, dataset_module):
    with pytest.raises(ValueError, match=r"'train-clean-100'.*dev-an4, test-an4"):
        load(dataset_args, split="train-clean-100")


def test_missing_corpus_names_the_directory(dataset_args, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(dataset_args, source_dir=tmp_path / "nowhere")


def test_archive_directory_is_accepted(an4_corpus, dataset_args, tmp_path):
    (tmp_path / "LibriSpeech").symlink_to(an4_corpus.source_dir)
    assert len(load(dataset_args, source_dir=tmp_path)) == 2
