import subprocess
import sys

import pytest

from espnet_fastformer.bin.main import COMMANDS

HELP = """
import contextlib, sys
from espnet_fastformer.bin.main import main

with contextlib.suppress(SystemExit):
    main([sys.argv[1], "--help"])
assert not {"torch", "espnet2"} & set(sys.modules)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_comes_at_once(command):
    done = subprocess.run(
        [sys.executable, "-c", HELP, command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: espnet-fastformer {command}")
