"""Long recordings made of short utterances."""

import numpy as np
import pytest
import soundfile
import yaml

from benchmarks.corpus import SILENCE, read_corpus
from benchmarks.study.joined import (
    find_decodings,
    find_joined,
    join_subset,
    joined_name,
    write_decodings,
)
from tests.inference.models import noise

FS = 16000
SECONDS = (1, 2, 3, 4)


@pytest.fixture
def texts(tmp_path):
    chapter = tmp_path / "corpus" / "test" / "1" / "2"
    chapter.mkdir(parents=True)
    lines = []
    for seconds in SECONDS:
        utt_id = f"1-2-{seconds:04}"
        soundfile.write(chapter / f"{utt_id}.flac", noise(seconds), FS)
        lines.append(f"{utt_id} WORDS OF {seconds}\n")
    (chapter / "1-2.trans.txt").write_text("".join(lines))
    return read_corpus(tmp_path / "corpus", ["test"])


def read(subset) -> dict[str, tuple[np.ndarray, str]]:
    recordings = {}
    for transcript in subset.rglob("*.trans.txt"):
        for line in transcript.read_text().splitlines():
            utt_id, _, text = line.partition(" ")
            samples, rate = soundfile.read(transcript.parent / f"{utt_id}.flac")
            assert rate == FS
            recordings[utt_id] = samples, text
    return recordings


@pytest.mark.parametrize("seconds", [2.5, 5, 60])
def test_every_utterance_comes_once(texts, tmp_path, seconds):
    join_subset(texts, "test", seconds, tmp_path)
    recordings = list(read(tmp_path / joined_name("test", seconds)).values())
    words = " ".join(text for _, text in recordings).split()
    assert sorted(words[2::3]) == [str(s) for s in SECONDS]
    lengths = [len(samples) / FS for samples, _ in recordings]
    silences = len(SECONDS) * np.array(SILENCE)
    assert silences[0] < sum(lengths) - sum(SECONDS) < silences[1]
    assert all(length >= seconds for length in lengths[:-1])
    for samples, text in recordings:
        said = sum(map(int, text.split()[2::3]))
        assert said < len(samples) / FS <= said + SILENCE[1] * len(text.split()) / 3


def test_recordings_stay_as_they_are(texts, tmp_path):
    join_subset(texts, "test", 5, tmp_path)
    files = list((tmp_path / "test-5s").rglob("*.*"))
    before = [file.stat().st_mtime_ns for file in files]
    join_subset(texts, "test", 5, tmp_path)
    assert [file.stat().st_mtime_ns for file in files] == before


def test_recordings_too_long_for_the_recipe_are_refused(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.study.joined.MAX_SECONDS", 4)
    with pytest.raises(ValueError, match="--joined_seconds 5 makes a recording of"):
        join_subset(texts, "test", 5, tmp_path)
    assert find_joined(tmp_path, "test") == []


def test_recordings_are_found_by_length(tmp_path):
    for name in ("test-120s", "test-30s", "test-0.5s", "test-other-30s", "test-s", "a"):
        (tmp_path / name).mkdir()
    assert find_joined(tmp_path, "test") == ["test-0.5s", "test-30s", "test-120s"]
    assert find_joined(tmp_path / "nowhere", "test") == []


def test_decodings_are_found_by_window(tmp_path):
    search = tmp_path / "decode.yaml"
    search.write_text("{beam_size: 1, batch_size: 16}")
    for windows in ([], [30.0, 0.5], [120.0]):
        paths = write_decodings(search, windows, tmp_path)
        assert len(paths) == 1 + len(windows)
    assert find_decodings(tmp_path, "decode") == {
        "decode-joined": "",
        "decode-joined-windows_0.5s": ", windows of 0.5 s",
        "decode-joined-windows_30s": ", windows of 30 s",
        "decode-joined-windows_120s": ", windows of 120 s",
    }
    assert find_decodings(tmp_path, "other") == {}
    assert find_decodings(tmp_path / "nowhere", "decode") == {}
    config = yaml.safe_load(paths[-1].read_text())
    assert config == {"beam_size": 1, "batch_size": 1, "pooling_window": 120.0}
