"""What rows have in common, and how they become equally large."""

import copy

import pytest
import yaml

from benchmarks.study.__main__ import DIRECTORY
from benchmarks.study.models import STEP, count_parameters, parse_options
from benchmarks.study.rows import DIFFERING, read_study, size_row, with_budget

SHIPPED = DIRECTORY / "study.yaml"
TOKENS = [str(index) for index in range(31)]


@pytest.fixture(scope="module")
def shipped():
    return read_study(SHIPPED)


@pytest.fixture(scope="module")
def wanted(shipped):
    return size_row(shipped.rows[shipped.reference], "char", TOKENS, None)[1]


@pytest.mark.parametrize("name", read_study(SHIPPED).rows)
def test_shipped_row(shipped, wanted, name):
    row = shipped.rows[name]
    reference = None if name == shipped.reference else wanted
    config, parameters = size_row(row, "char", TOKENS, reference)
    assert parameters == pytest.approx(wanted, rel=shipped.tolerance)
    common = shipped.rows[shipped.reference].asr_config
    for key in config.keys() | common.keys():
        if key not in DIFFERING:
            assert config[key] == common[key]
    for key, value in yaml.safe_load(SHIPPED.read_text())["asr_config"][
        "encoder_conf"
    ].items():
        assert config["encoder_conf"][key] == value or key in name or "head" in name


def test_schedule_ends_with_the_training(shipped):
    config = shipped.rows[shipped.reference].asr_config
    updates = config["max_epoch"] * config["num_iters_per_epoch"]
    assert config["scheduler_conf"]["max_steps"] == updates


def test_no_other_size_is_closer(shipped, wanted):
    config, parameters = size_row(shipped.rows["aft-conv"], "char", TOKENS, wanted)
    for step in (-STEP, STEP):
        other = copy.deepcopy(config)
        other["encoder_conf"]["linear_units"] += step
        others = count_parameters(parse_options(other, "char"), TOKENS)
        assert abs(others - wanted) > abs(parameters - wanted)


def test_size_that_is_given_stays(shipped, wanted):
    row = shipped.rows["fastformer"]
    row = copy.deepcopy(row)
    row.asr_config["encoder_conf"]["linear_units"] = 40
    config, parameters = size_row(row, "char", TOKENS, wanted)
    assert config["encoder_conf"]["linear_units"] == 40
    assert parameters < 0.9 * wanted


def test_row_that_is_too_large_is_named(shipped, wanted):
    with pytest.raises(ValueError, match=r"aft-simple: aft has .* linear_units: 8"):
        size_row(shipped.rows["aft-simple"], "char", TOKENS, wanted // 2)


def test_budget_stretches_the_schedule():
    config = {"max_epoch": 15, "scheduler_conf": {"max_steps": 6000, "hold_ratio": 0.4}}
    longer = with_budget(config, 1.3)
    assert longer["max_epoch"] == 20
    assert longer["scheduler_conf"] == {"max_steps": 8000, "hold_ratio": 0.4}
    assert config["scheduler_conf"]["max_steps"] == 6000


def change(key, value):
    def apply(content):
        *parents, last = key
        for parent in parents:
            content = content[parent]
        content[last] = value

    return apply


def remove(key):
    return lambda content: content.pop(key)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (remove("reference"), "lacks reference"),
        (change(["seed"], 1), "seed is none of"),
        (change(["reference"], "lstm"), "does not have: lstm"),
        (change(["rows", "more"], {"fastformer": {}}), "two rows fastformer"),
        (
            change(["rows", "blocks", "fastformer-conformer", "optim_conf"], {}),
            "fastformer-conformer: optim_conf is none of",
        ),
        (
            change(["rows", "time", "aft-conv-time", "time_of"], "lstm"),
            "does not have: lstm",
        ),
    ],
)
def test_mistake_in_a_file_is_named(tmp_path, edit, message):
    content = yaml.safe_load(SHIPPED.read_text())
    edit(content)
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=message):
        read_study(path)


def test_choice_of_rows(shipped):
    assert [row.group for row in shipped.choose(None)] == ["comparison"] * 9
    names = [row.name for row in shipped.choose(["time", "fastformer"])]
    assert names == [
        "fastformer-time",
        "aft-simple-conformer-time",
        "aft-conv-time",
        "fastformer",
    ]
    with pytest.raises(ValueError, match="no row or group 'lstm'"):
        shipped.choose(["lstm"])
