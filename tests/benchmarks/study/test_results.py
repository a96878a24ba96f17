"""Transcripts that a training left."""

import pytest

from benchmarks.study.results import read_errors


def test_texts_are_compared_by_utterance(tmp_path):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "text.scp").write_text("b NO\na ON MATS\n")
    (tmp_path / "text.scp").write_text("a ON A MAT\nb\n")
    errors = read_errors(tmp_path)
    assert errors.utt_ids == ["a", "b"]
    assert errors.cer.tolist() == [3, 2]
    (tmp_path / "text.scp").write_text("a ON A MAT\n")
    with pytest.raises(ValueError, match=f"{tmp_path}: not all utterances"):
        read_errors(tmp_path)
