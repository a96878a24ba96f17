"""ESPnet's own recipe egs2/mini_an4/asr1, unmodified, with our encoders."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "integration" / "egs2_mini_an4.sh"
CANNOT_RUN = 77


@pytest.fixture(scope="module")
def recipe() -> Iterator[Path]:
    """The recipe's directory after all of its stages."""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            ["bash", SCRIPT, directory],
            env={**os.environ, "PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode == CANNOT_RUN:
            pytest.skip(done.stdout.splitlines()[-1])
        assert done.returncode == 0, done.stdout
        yield Path(directory) / "espnet" / "egs2" / "mini_an4" / "asr1"


@pytest.mark.parametrize("model", ["fastformer", "transducer", "streaming"])
def test_every_stage_leaves_its_result(recipe, model):
    exp = recipe / "exp" / model
    (package,) = exp.glob("*.zip")
    assert package.stat().st_size > 0
    results = (exp / "RESULTS.md").read_text()
    for rate in ("WER", "CER", "TER"):
        rows = re.findall(
            r"^\|[^|]+/test\|2\|\d+(?:\|\d+\.\d){6}\|$",
            results.partition(f"### {rate}\n")[2].partition("###")[0],
            re.MULTILINE,
        )
        assert len(rows) == 1, results


def test_options_in_our_documents_are_those_of_asr_sh(recipe):
    known = set(re.findall(r"^(\w+)=", (recipe / "asr.sh").read_text(), re.MULTILINE))
    for document in (ROOT / "README.md", ROOT / "egs" / "README.md"):
        text = document.read_text().replace("\\\n", " ")
        commands = re.findall(r"^\./run\.sh (.*)$", text, re.MULTILINE)
        assert commands
        for command in commands:
            options = re.sub(r'".*?"', "", command.partition(" #")[0])
            assert set(re.findall(r"--(\w+)", options)) <= known
