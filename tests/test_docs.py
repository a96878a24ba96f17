"""README.md and docs/: numbers, links, programs, and the site made of them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from espnet_fastformer.bin import export
from tests.inference.models import make_experiment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("egs/**/README.md")]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def table(text: str, header: list[str]) -> list[list[str]]:
    """Rows of the table with that header."""
    lines = text.partition(f"| {' | '.join(header)} |\n")[2].splitlines()[1:]
    end = next(i for i, line in enumerate([*lines, ""]) if not line.startswith("|"))
    assert end > 0
    return [cells(line) for line in lines[:end]]


def example(language: str, text: str) -> str:
    """The only code block of README.md that has a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (block,) = [block for block in blocks if text in block]
    return block


def test_readme_is_short():
    assert len(README.split()) <= 900


def test_accuracies_are_those_of_the_study():
    subsets = ["test-small", "test-other"]
    header = ["encoder", subsets[0], "difference", subsets[1], "difference"]
    page = (ROOT / "docs" / "accuracy.md").read_text()
    columns = ["encoder", "parameters", "seeds", "CER", "difference", "WER"]
    first_seed = {}
    for subset in subsets:
        section = page.partition(f"\n### {subset}\n")[2]
        for name, _, seeds, rate, *_ in table(section, columns):
            of_seed = rate.partition("(")[2] if seeds != "1" else rate
            first_seed[name, subset] = float(of_seed.partition(",")[0])
    rows = table(README, header)
    reference = rows[0][0]
    assert len(rows) <= 5
    for name, *numbers in rows:
        for subset, rate, difference in zip(
            subsets, numbers[::2], numbers[1::2], strict=True
        ):
            assert float(rate) == first_seed[name, subset]
            if name != reference:
                change = first_seed[name, subset] - first_seed[reference, subset]
                assert difference == f"{change:+.1f}"
    easy, hard = (
        first_seed["conformer-rel_selfattn", x] - first_seed["aft-simple-conformer", x]
        for x in subsets
    )
    assert f"AFT makes {easy:.1f} points fewer" in README
    assert f"and {hard:.1f} on harder speech" in README


def test_speed_and_memory_are_those_of_the_benchmarks():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    section = page.partition("\n## Encoders\n")[2]
    header = ["", "5 s", "15 s", "60 s", "240 s", "3600 s"]
    rows = {
        row[0]: dict(zip(header, row, strict=True)) for row in table(section, header)
    }
    ours, theirs = rows["fastformer"], rows["e_branchformer-rel_selfattn"]

    def seconds(cell: str) -> float:
        value, unit = cell.split()[:2]
        return float(value) * {"s": 1.0, "ms": 1e-3}[unit]

    short, long = (seconds(theirs[x]) / seconds(ours[x]) for x in ("60 s", "240 s"))
    assert f"**{short:.0f} times as fast**" in README
    assert f"{long:.0f} times on 240 seconds" in README
    assert f"in {ours['3600 s'].split('<br>')[1]}, where" in README
    assert theirs["3600 s"] == "out of memory"


def test_error_rates_of_streams_are_those_of_their_page():
    latencies = ["whole", "1280 ms", "640 ms", "320 ms", "160 ms"]
    page = (ROOT / "docs" / "streaming.md").read_text()
    rates = {
        name: [cell.partition(" ")[0] for cell in row]
        for name, subset, *row in table(page, ["encoder", "subset", *latencies])
        if subset == "test-small"
    }
    rows = table(README, ["encoder", *latencies])
    assert {name: row for name, *row in rows} == rates


def test_results_are_of_configurations_that_are_there():
    page = (ROOT / "egs" / "librispeech" / "README.md").read_text()
    section = page.partition("\n## Results\n")[2].partition("\n## ")[0]
    _, _, *rows = [cells(row) for row in section.splitlines() if row.startswith("|")]
    for *_, command in rows:
        script, config = command.strip("`").split()[1::3]
        assert (ROOT / script).is_file()
        assert (ROOT / config).is_file()
    assert len(rows) > 2


def test_links_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not target.startswith(("http:", "https:", "#")):
                path = page.parent / target.partition("#")[0]
                assert path.exists(), f"{page}: {target}"


def test_module_in_readme(capsys):
    exec(example("python", "AFTEncoder"), {})
    assert capsys.readouterr().out == "torch.Size([2, 374, 256]) tensor([374, 224])\n"


def test_exported_model_in_readme(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    exp = make_experiment(tmp_path / "exp", {"num_blocks": 1})
    monkeypatch.chdir(tmp_path)
    export.main(["--exp", str(exp), "--format", "onnx", "--output", "model.onnx"])
    np.save("feats.npy", torch.randn(300, 20).numpy())
    capsys.readouterr()
    exec(example("python", "onnxruntime"), {})
    tokens = capsys.readouterr().out.split()
    assert len(tokens) > 10
    assert "<blank>" not in tokens


@pytest.mark.slow
def test_tutorial(tmp_path):
    pytest.importorskip("onnxscript")
    made = shutil.ignore_patterns("data", "downloads", "exp", "__pycache__")
    for name in ("egs/librispeech", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=made)
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    rng = np.random.default_rng(0)
    for number in range(48):
        path = recordings / f"{number:02}.wav"
        soundfile.write(path, rng.normal(scale=0.1, size=16000), 16000)
        path.with_suffix(".txt").write_text("What is said\n")

    page = (ROOT / "docs" / "tutorial.md").read_text()
    assert page.count("--max_epoch 10") == 1
    page = page.replace("--max_epoch 10", "--max_epoch 1 --encoder_conf num_blocks=1")
    install, *blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)
    assert install[1].startswith("pip install")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    output = ""
    for language, block in blocks:
        command = {"python": [sys.executable, "-c"], "sh": ["bash", "-ec"]}[language]
        done = subprocess.run(
            [*command, block],
            cwd=tmp_path,
            env={**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        output += done.stdout
    assert "|decode_ctc/test|20|" in output
    # Of each recording, what was said in it.
    assert len(re.findall(r"^recordings/\d\d\.wav\t", output, re.M)) == 48
    assert (tmp_path / "model.onnx").is_file()


def test_site_is_built_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["-c", "docs", ".", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    options = (tmp_path / "docs" / "options.html").read_text()
    assert "cgmlp_linear_units" in options and "aft_window_size" in options
    assert "url=docs/" in (tmp_path / "index.html").read_text()
