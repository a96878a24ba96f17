"""Subsets that are no fair test of what was trained are named."""

import shutil

import pytest
from src.compare_subsets import compare_subsets


@pytest.fixture
def warnings(an4_corpus, dataset_module, tmp_path):
    """Compare a copy of AN4, changed before, and return what is said of it."""
    root = tmp_path / "corpus"
    shutil.copytree(an4_corpus.source_dir, root)

    def utterances(subset):
        return dataset_module.Dataset(subset, root, tmp_path / "data").utterances

    def compare(*others):
        train = utterances(an4_corpus.train)
        return list(compare_subsets(train, {name: utterances(name) for name in others}))

    compare.root = root
    return compare


def write(chapter, text):
    (transcript,) = chapter.glob("*.trans.txt")
    names = [line.split()[0] for line in transcript.read_text().splitlines()]
    transcript.write_text("".join(f"{name} {text}\n" for name in names))


def test_subsets_apart_in_the_same_letters_are_fair(warnings):
    write(warnings.root / "test-an4" / "fcaw" / "1", "GO YES")
    write(warnings.root / "test-an4" / "mmxg" / "1", "START")
    assert warnings("test-an4") == []


def test_other_case_is_told_by_the_share_of_unknown_letters(warnings):
    write(warnings.root / "test-an4" / "fcaw" / "1", "go yes")
    write(warnings.root / "test-an4" / "mmxg" / "1", "START")
    (warning,) = warnings("test-an4")
    assert warning.startswith("test-an4: 50.0% of the letters of its transcripts are")
    assert "cannot be recognised: g, o, y, e, s. Write all transcripts alike" in warning


@pytest.mark.parametrize("name", ["fash-1-0000", "other-1-0007"])
def test_recordings_of_training_are_named(warnings, name):
    chapter = warnings.root / "copy" / "speaker" / "1"
    shutil.copytree(warnings.root / "train-an4" / "fash" / "1", chapter)
    (chapter / "fash-1-0000.sph").rename(chapter / f"{name}.sph")
    transcript = chapter / "fash-1.trans.txt"
    transcript.write_text(transcript.read_text().replace("fash-1-0000", name))
    (warning,) = warnings("copy")
    named = ", ".join(sorted([name, "fash-1-0001"]))
    assert f"copy: 2 of its 2 utterances are in the training subsets too: {named}." in (
        warning
    )


def test_other_recordings_of_the_same_length_and_name_are_others(warnings):
    chapter = warnings.root / "like" / "fash" / "1"
    shutil.copytree(warnings.root / "train-an4" / "fash" / "1", chapter)
    for audio in chapter.glob("*.sph"):
        content = bytearray(audio.read_bytes())
        content[-1] ^= 1
        audio.write_bytes(content)
    assert warnings("like") == []


def test_long_lists_are_cut_short(warnings):
    write(warnings.root / "dev-an4" / "fbbh" / "1", "abcdefg")
    (warning,) = warnings("dev-an4")
    assert ": a, b, c, d, e and 2 more. Write" in warning
