import subprocess
import sys

from tests.environment import ROOT


def test_help_does_not_wait_for_pytorch():
    command = [sys.executable, "-X", "importtime", "-m", "benchmarks.study", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("usage: python -m benchmarks.study ")
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert "argparse" in imported and "torch" not in imported
