import pytest

from benchmarks.corpus import read_corpus
from benchmarks.results import Report
from benchmarks.streaming_wer import COLUMNS, join_speakers, main
from tests.inference.models import make_experiment

STREAMING = {
    "block_type": "conformer",
    "input_layer": "conv2d",
    "pos_enc_layer_type": "none",
    "dynamic_chunk_training": True,
}
CONTEXTUAL = {
    "output_size": 16,
    "attention_heads": 2,
    "linear_units": 16,
    "num_blocks": 1,
    "block_size": 20,
    "hop_size": 8,
    "look_ahead": 8,
}


def test_whole_in_chunks_and_joined(corpus, tmp_path):
    ours = make_experiment(tmp_path / "ours", STREAMING, normalize=None)
    theirs = make_experiment(
        tmp_path / "theirs",
        CONTEXTUAL,
        encoder="contextual_block_conformer",
        normalize=None,
    )
    result = tmp_path / "result"
    main(
        [
            *("--exps", str(ours), str(theirs)),
            *("--corpus", str(corpus), "--subsets", "test", "--chunk_sizes", "8", "4"),
            *("--joined_seconds", "9", "--joined_chunk_size", "8", "--history", "0.6"),
            *("--output", str(result)),
        ]
    )
    report = Report.load(result.with_suffix(".json"))
    assert tuple(report.columns) == COLUMNS
    ways = [
        "whole",
        "320 ms",
        "160 ms",
        "320 ms, 0.64 s before: 1 of 9 s, one by one",
        "320 ms, 0.64 s before: 1 of 9 s, joined",
    ]
    assert [row[:2] for row in report.rows] == [
        [model, way] for model in ("ours", "theirs") for way in ways
    ]
    for rows in (report.rows[:5], report.rows[5:]):
        whole, *chunks, one_by_one, joined = (float(row[3].rstrip("%")) for row in rows)
        assert all(rate != whole for rate in chunks)
        assert joined != one_by_one
        for row, rate, against in [
            *zip(rows[1:3], chunks, [whole, whole], strict=True),
            (rows[4], joined, one_by_one),
        ]:
            change = float(row[5].rstrip("%"))
            assert change == pytest.approx(100 * (rate / against - 1), abs=0.1)


def test_recordings_are_of_one_speaker(corpus):
    texts = read_corpus(corpus, ["test"])
    other = {corpus / "test" / "2" / "1" / path.name: path for path in texts}
    for copy, path in other.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    texts |= {copy: texts[path] for copy, path in other.items()}
    first, second = join_speakers(texts, 13, seed=0)
    assert {u.audio.parts[-3] for u in first} == {"1"}
    assert {u.audio.parts[-3] for u in second} == {"2"}
    assert {u.audio for u in first} == set(read_corpus(corpus, ["test"])) - set(other)
    assert len(first) > 3
