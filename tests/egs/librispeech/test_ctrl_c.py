"""What Ctrl-C does to a run."""

import os
import signal
import subprocess
import sys

import pytest

from .conftest import RECIPE_DIR

# With a worker, another program, and a library that takes SIGINT for itself. The main
# thread waits in C, where no handler of Python's is run.
RUN = """\
import ctypes, multiprocessing, signal, subprocess, sys, time
import interruption

if __name__ == "__main__":
    interruption.end_at_ctrl_c()
    interruption.where = "in a test"
    signal.signal(signal.SIGINT, lambda *_: sys.exit())
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=time.sleep, args=(1000,))
    worker.start()
    subprocess.Popen(["sleep", "1000"])
    print("started", flush=True)
    ctypes.CDLL(None).sleep(1000)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(RUN)
    return path


def start(*command: str) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(RECIPE_DIR)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_ctrl_c_ends_a_run_and_all_that_it_started(script, send):
    process = start(sys.executable, str(script))
    process.stdout.readline()
    send(process.pid, signal.SIGINT)
    # It ends when the last of them, which all have its other end, has.
    output = process.communicate(timeout=100)
    message = "\nStopped in a test. Give the same command again to go on.\n"
    assert output == ("", message)
    assert process.returncode == -signal.SIGINT


def test_loop_of_a_shell_does_not_go_on(script):
    loop = f'for n in 1 2; do "{sys.executable}" "{script}"; done; echo went on'
    process = start("bash", "-c", loop)
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    assert output == ""
