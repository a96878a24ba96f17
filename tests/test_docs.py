"""Numbers of README.md, against those that the commands have written below docs/."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_accuracies_are_those_of_the_study():
    section = (ROOT / "README.md").read_text().partition("\n## Accuracy\n")[2]
    header, _, *lines = [
        cells(line)
        for line in section.partition("\n## ")[0].splitlines()
        if line.startswith("|")
    ]
    assert header == ["encoder", "parameters", "CER", "difference", "WER"]
    page = (ROOT / "docs" / "accuracy.md").read_text()
    table = page.partition("\n### test-small\n")[2].partition("\n###")[0]
    for name, *numbers in lines:
        (row,) = [c for c in map(cells, table.splitlines()) if c[0] == name]
        assert numbers == [row[1], *row[3:]]
    assert len(lines) > 2
