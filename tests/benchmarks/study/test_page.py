"""Tables of what trainings left behind."""

import json
import math

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from benchmarks.measure import Result
from benchmarks.scores import Errors
from benchmarks.study.page import MARKS, NotRun, write_page
from benchmarks.study.results import VALID_CER, RowResult, Training

SUBSET = "test-small"
FACTS = {
    "machine": {"cores": "2"},
    "commands": ["python -m benchmarks.study"],
    "settings": {},
}
NOT_RUN = [
    NotRun(["later", "latest"], [0, 1], "python -m benchmarks.study --rows late")
]
CONFIG = {"max_epoch": 15, "num_iters_per_epoch": 400}


def training(directory, cer=None, joined=None, failure=None) -> Training:
    errors = {}
    for name, wrong in ((SUBSET, cer), (f"{SUBSET}-30s", joined)):
        if wrong is not None:
            wrong, units = np.array(wrong, dtype=float), np.full(len(wrong), 100.0)
            ids = [str(index) for index in range(len(wrong))]
            errors[name] = Errors(ids, wrong, units, wrong / 10, units / 10)
    return Training(directory, errors, failure)


def result(seconds: float, audio: float, failure: str | None = None) -> Result:
    memory = None if failure else 10**9
    return Result(
        "", "", "", 1, 1, audio, [seconds], memory, memory, None, None, failure
    )


@pytest.fixture
def rows(tmp_path) -> list[RowResult]:
    speed = [result(0.4, 5), result(0.3, 15), result(6.0, 120)]
    slow = [result(0.5, 5), result(0.3, 15), result(math.nan, 120, "out of memory")]
    return [
        RowResult(
            "reference",
            1000,
            CONFIG,
            {
                0: training(tmp_path, [20, 30], [25, 35]),
                1: training(tmp_path, [22, 28]),
            },
            slow,
        ),
        RowResult("ours", 1001, CONFIG, {0: training(tmp_path, [18, 26])}, speed),
        RowResult(
            "broken", 1002, CONFIG, {0: training(tmp_path, failure="no space")}, []
        ),
    ]


def write(page, rows) -> dict[str, dict]:
    joined = {SUBSET: [SUBSET, f"{SUBSET}-30s"]}
    write_page(page, rows, "reference", [SUBSET], joined, FACTS, NOT_RUN)
    content = json.loads(page.with_suffix(".json").read_text())
    return {row["name"]: row for row in content["rows"]}


def cells(page, heading: str, name: str) -> list[str]:
    section = page.read_text().partition(f"### {heading}\n")[2].partition("###")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines()]
    (found,) = [row for row in rows if row[0] == name]
    return [cell.strip() for cell in found[1:]]


def test_tables(tmp_path, rows):
    page = tmp_path / "page.md"
    numbers = write(page, rows)
    assert cells(page, SUBSET, "reference")[:3] == ["1,000", "2", "25.0 (25.0, 25.0)"]
    # Against the one seed that both have.
    assert cells(page, SUBSET, "ours")[2:] == ["22.0", "-3.0 [-4.0, -2.0]", "22.0"]
    assert cells(page, SUBSET, "broken")[2] == "failed"
    assert "- broken, seed 0: no space" in page.read_text()
    assert cells(page, "Cost", "ours") == ["6,000", "400 ms", "1.00 GB", "0.02", "0.05"]
    assert cells(page, "Cost", "reference")[-1] == "out of memory"
    assert cells(page, f"{SUBSET}, joined", "reference") == ["25.0", "30.0 (+20 %)"]
    assert numbers["ours"]["scores"][SUBSET]["CER"] == 22
    assert numbers["ours"]["scores"][SUBSET]["CER_difference"]["value"] == -3
    assert numbers["reference"]["real_time_factor"] == {"15": 0.02, "120": None}
    not_run = page.read_text().partition("### Not trained")[2]
    assert "Seeds 0, 1 of later, latest:" in not_run
    assert "\n```sh\npython -m benchmarks.study --rows late\n```\n" in not_run


def test_curve_is_not_cut_off_by_a_training_that_goes_on(tmp_path):
    trainings = {
        0: training(tmp_path / "seed0", [20]),
        1: training(tmp_path / "seed1", [20]),
        2: training(tmp_path / "seed2"),
    }
    for (seed, own), steps in zip(trainings.items(), (3, 3, 1), strict=True):
        with SummaryWriter(own.directory / "tensorboard") as writer:
            for step in range(steps):
                writer.add_scalar(VALID_CER, (seed + 1) / 4, step)
    row = RowResult("ours", 1000, CONFIG, trainings, [])
    assert row.curve() == {0: 37.5, 1: 37.5, 2: 37.5}
    row = RowResult("begun", 1000, CONFIG, {2: trainings[2]}, [])
    assert row.curve() == {0: 75.0}


def test_what_is_written_by_hand_stays(tmp_path, rows):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{MARKS[0]}\nold\n{MARKS[1]}\n\nConclusion.\n")
    write(page, rows)
    text = page.read_text()
    assert text.startswith(f"# Title\n\n{MARKS[0]}\n")
    assert text.endswith(f"{MARKS[1]}\n\nConclusion.\n")
    assert "old" not in text
    write(page, rows)
    assert page.read_text() == text


def test_page_without_marks_is_not_overwritten(tmp_path, rows):
    page = tmp_path / "page.md"
    page.write_text("# By hand\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        write(page, rows)
    assert page.read_text() == "# By hand\n"
