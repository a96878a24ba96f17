import subprocess
import sys

import espnet2
import pytest
import torch

from espnet_fastformer import __version__
from espnet_fastformer.bin.main import COMMANDS, main

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


def test_versions(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert not caught.value.code
    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    python = ".".join(map(str, sys.version_info[:3]))
    assert lines.pop("device")
    assert lines == {
        "espnet-fastformer": __version__,
        "Python": python,
        "PyTorch": torch.__version__,
        "ESPnet": espnet2.__version__,
    }
