"""Pages, against what they speak of."""

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


def test_results_are_of_configurations_that_are_there():
    page = (ROOT / "egs" / "librispeech" / "README.md").read_text()
    section = page.partition("\n## Results\n")[2].partition("\n## ")[0]
    _, _, *rows = [cells(row) for row in section.splitlines() if row.startswith("|")]
    for *_, command in rows:
        script, config = command.strip("`").split()[1::3]
        assert (ROOT / script).is_file()
        assert (ROOT / config).is_file()
    assert len(rows) > 2
