"""Every command from end to end, at sizes at which its numbers mean nothing."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import (
    document,
    encoders,
    gpu,
    kernels,
    layers,
    runtimes,
    streaming,
    targets,
)
from benchmarks.results import Report, duration

QUICK = ["--device", "cpu", "--threads", "1", "--rounds", "1"]


def read_table(text: str) -> list[list[str]]:
    """The cells of the first table, all rows of equal length."""
    lines = text[text.index("|") :].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert set(rows[1]) == {"---"}
    assert len({len(row) for row in rows}) == 1
    return [rows[0], *rows[2:]]


def test_layers(tmp_path, capsys):
    layers.main(
        [
            *QUICK,
            *("--lengths", "0.4", "--modes", "inference"),
            *("--competitors", "espnet-fast_selfattn", "fastformer", "aft-full-plain"),
            *("--output", str(tmp_path / "layers")),
        ]
    )
    header, *rows = read_table(capsys.readouterr().out)
    assert header[0] == "what"
    assert len(rows) == 3 * 2
    report = Report.load(tmp_path / "layers.json")
    assert [r.name for r in report.results] == [row[0] for row in rows]
    assert read_table((tmp_path / "layers.md").read_text()) == [header, *rows]
    for name in ("processor", "threads", "torch", "espnet", "espnet-fastformer"):
        assert report.machine[name]
    for result in report.results:
        # ESPnet's module knows no bfloat16.
        is_known = (result.name, result.dtype) == ("espnet-fast_selfattn", "bfloat16")
        assert (result.failure is not None) == is_known, result.failure


def test_encoders_and_their_document(tmp_path):
    encoders.main(
        [
            *QUICK,
            *("--lengths", "0.3", "0.6", "--num_blocks", "1", "--dtypes", "float32"),
            *("--competitors", "e_branchformer-rel_selfattn", "aft-simple"),
            *("--output", str(tmp_path / "encoders")),
        ]
    )
    report = Report.load(tmp_path / "encoders.json")
    assert [(r.name, r.mode, r.audio) for r in report.results] == [
        (name, mode, audio)
        for mode in ("inference", "training")
        for audio in (0.3, 0.6)
        for name in ("e_branchformer-rel_selfattn", "aft-simple")
    ]
    assert all(result.failure is None for result in report.results)

    report.results[-1].failure = "out of memory"
    report.save(tmp_path / "encoders")
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    other = "## Other\n\nmachine\n\n| a |\n| --- |"
    body = [document.MARKS[0], "## Encoders\n\nold\n", other, document.MARKS[1]]
    page.write_text("\n".join(["Before", *body, "After\n"]))
    for _ in range(2):
        document.main([str(tmp_path / "encoders.json"), "--page", str(page)])
    text = page.read_text()
    assert text.startswith("Before\n") and text.endswith("After\n")
    assert "old" not in text and text.count(other) == 1
    assert text.count("## Encoders") == 1
    header, first, *_ = read_table(text.partition("### training")[0])
    assert header == ["", "0.3 s", "0.6 s"]
    assert first[0] == "e_branchformer-rel_selfattn"
    assert duration(report.results[0].median) in first[1]
    assert "out of memory" in text.partition("### training")[2]
    image = page.parent / "images" / "encoders.png"
    assert f"(images/{image.name})" in text
    assert image.read_bytes().startswith(b"\x89PNG")

    # What failed is measured again, in a file of its own.
    report.results = [replace(report.results[-1], failure=None)]
    report.save(tmp_path / "rest")
    parts = [str(tmp_path / f"{name}.json") for name in ("encoders", "rest")]
    document.main([*parts, "--page", str(page)])
    text = page.read_text()
    assert text.count("## Encoders") == 1
    assert "out of memory" not in text
    assert len(read_table(text.partition("### training")[0])) == len(
        read_table(text.partition("### training")[2])
    )


def test_runtimes(tmp_path):
    pytest.importorskip("onnxscript")
    runtimes.main(
        [
            *QUICK,
            *("--lengths", "0.7", "--num_blocks", "1"),
            "--competitors",
            *("e_branchformer-rel_selfattn-torch", "fastformer-torch"),
            *("e_branchformer-rel_selfattn-onnx", "fastformer-int8"),
            *("--output", str(tmp_path / "runtimes")),
        ]
    )
    report = Report.load(tmp_path / "runtimes.json")
    assert len(report.results) == 4
    assert all(result.failure is None for result in report.results)


def test_document_names_what_is_wrong(tmp_path, capsys):
    page = tmp_path / "benchmarks.md"
    page.write_text("No marks")
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"title": "Other"}))
    with pytest.raises(SystemExit):
        document.main([str(path), "--page", str(page)])
    assert f"{page} lacks" in capsys.readouterr().err
    page.write_text("\n".join(document.MARKS))
    with pytest.raises(SystemExit):
        document.main([str(path), "--page", str(page)])
    assert f"{path} is not the JSON of a benchmark" in capsys.readouterr().err


def test_targets(tmp_path):
    targets.main(
        [
            *QUICK,
            *("--groups", "full_against_plain", "encoders_against_espnet"),
            *("--shrink", "200", "--num_blocks", "1"),
            *("--output", str(tmp_path / "targets")),
        ]
    )
    header, *rows = read_table((tmp_path / "targets.md").read_text())
    assert tuple(header) == targets.COLUMNS
    assert all(row[3][0].isdigit() for row in rows), rows
    assert {row[4] for row in rows} <= {"yes", "no", targets.EXEMPT}
    assert {row[1] for row in rows} >= {
        "aft-full-plain",
        targets.REL_SELFATTN,
        targets.FAST_SELFATTN,
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_says_that_it_needs_one():
    with pytest.raises(SystemExit, match="needs a GPU"):
        gpu.main([])


def test_gpu(tmp_path):
    gpu.main(
        [
            *QUICK,
            *("--num_blocks", "1", "--batch_size", "2", "--minutes", "60"),
            *("--parts", "exactness", "kernels", "training", "streaming", "speed"),
            *("tests", "--tests", "tests/cpu/test_dropout.py"),
            *("--competitors", gpu.BASELINE, "fastformer", "aft-conv"),
            *("--lengths", "0.3", "--training_audio", "0.3"),
            *("--configs", "train_asr_ctc_fastformer_small", "--most_utterances", "2"),
            *("--training_seconds", "0", "--stream_seconds", "1.5"),
            *("--output", str(tmp_path / "gpu")),
        ]
    )
    header, *rows = read_table((tmp_path / "gpu.md").read_text())
    assert tuple(header) == gpu.COLUMNS
    parts = {part: [row for row in rows if row[0] == part] for part, *_ in rows}
    assert len(parts["exactness"]) == 2 * 2 * 2
    assert all(row[4].endswith("ok") for row in parts["exactness"])
    competitors = [gpu.BASELINE, "fastformer", "aft-conv"]
    assert [row[1] for row in parts["kernels"]] == competitors
    assert all(int(row[3].split()[0].replace(",", "")) > 50 for row in parts["kernels"])
    # The rows of speed are called training and inference too.
    trained, *_ = parts["training"]
    assert trained[1:3] == [
        "train_asr_ctc_fastformer_small",
        "float32, 2 x 15 s, with decoder and optimizer",
    ]
    assert {row[1] for row in parts["streaming"]} == {*streaming.ENCODERS}
    (of_tests,) = parts["tests"]
    assert "passed" in of_tests[3]
    speed = [row for row in rows if row[0] == "inference"]
    assert [row[1] for row in speed] == competitors


def test_kernels(tmp_path):
    kernels.main(
        [
            *("--num_blocks", "1", "--batch_size", "2", "--seconds", "1"),
            *("--competitors", "fastformer", "--output", str(tmp_path / "kernels")),
        ]
    )
    header, *rows = read_table((tmp_path / "kernels.md").read_text())
    assert tuple(header) == kernels.COLUMNS
    names = [kernels.REL_SELFATTN, kernels.FAST_SELFATTN, "fastformer"]
    assert [(row[0], row[2]) for row in rows] == 2 * [
        (name, part) for name in names for part in ("forward", "backward")
    ]
    for row in rows:
        assert int(row[4].replace(",", "")) > 50
        assert float(row[8]) > 0
    rel_selfattn, fast_selfattn, ours = rows[::2][:3]
    assert rel_selfattn[7] == fast_selfattn[5] == "1.00"
    # Lengths of ESPnet's are read one by one.
    assert int(ours[3]) <= 1 < int(rel_selfattn[3])
