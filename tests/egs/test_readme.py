"""The batches of egs/README.md, against the configurations."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
README = (ROOT / "egs" / "README.md").read_text()


def rows() -> list[tuple[str, list[str]]]:
    table = README.partition("| configuration |")[2].partition("\n\n")[0]
    return [
        (names, columns)
        for _, names, *columns, _ in (
            line.split("|") for line in table.splitlines()[2:]
        )
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("train_asr_*.yaml")))
def test_batches_of_all_gpus_together_stay_the_same(path):
    if path.stem.endswith("_small"):
        return
    # The last row that fits is the most special one.
    (columns,) = [
        columns
        for names, columns in rows()
        if any(path.match(name) for name in re.findall(r"`(.+?)`", names))
    ][-1:]
    config = yaml.safe_load(path.read_text())
    cells = [tuple(int(n) for n in column.split("×")) for column in columns]
    assert cells[0] == (config["batch_bins"], config["accum_grad"])
    for num_gpus, (bins, accumulated) in zip((1, 2, 4, 8), cells, strict=True):
        assert bins * accumulated == config["batch_bins"] * config["accum_grad"]
        assert bins / num_gpus <= config["batch_bins"]
