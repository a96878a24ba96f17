"""What a run says on its console, and before it starts."""

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
import run
from src import console
from tqdm import tqdm

from .conftest import RECIPE_DIR


def test_help_does_not_wait_for_pytorch():
    command = [sys.executable, "-X", "importtime", RECIPE_DIR / "run.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("usage: run.py ")
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert "argparse" in imported and "torch" not in imported


def check_launcher(environ, **numbers):
    options = {"ngpu": None, "nproc": 1, "num_nodes": 1, **numbers}
    run.check_launcher(SimpleNamespace(**options), environ)
    return environ


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "1"},
        {"LOCAL_RANK": "1", "WORLD_SIZE": "2"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "4"},
    ],
)
def test_one_process_has_no_rank(environ):
    assert check_launcher({"PATH": "", **environ}) == {"PATH": ""}


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, {"nproc": 2}),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "8"}, {"ngpu": 4, "num_nodes": 2}),
        ({"TORCHELASTIC_RUN_ID": "", "RANK": "0", "WORLD_SIZE": "2"}, {"ngpu": 2}),
        # A batch job of SLURM that starts no other processes.
        ({"SLURM_PROCID": "0"}, {"ngpu": 4}),
    ],
)
def test_ranks_of_processes_that_train_together_stay(environ, numbers):
    assert check_launcher(dict(environ), **numbers) == environ


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({"RANK": "1"}, {"nproc": 2}),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, {"nproc": 2}),
        ({"TORCHELASTIC_RUN_ID": "", "RANK": "0", "WORLD_SIZE": "4"}, {}),
    ],
)
def test_ranks_of_other_processes_are_refused(environ, numbers):
    with pytest.raises(ValueError, match="in the environment: this is one of several"):
        check_launcher(environ, **numbers)


def test_bars_are_lines_off_a_terminal(capsys):
    with tqdm(range(3), desc="work", file=console._Lines(), mininterval=0) as bar:
        for _ in bar:
            pass
    error = capsys.readouterr().err
    assert error.endswith("\n") and "\r" not in error
    assert all(line.startswith("work: ") for line in error.splitlines())
    assert " 3/3 " in error.splitlines()[-1]


def test_warning_is_said_once_and_error_without_traceback():
    handler = console._Console()

    def is_shown(level, message, **options):
        record = logging.makeLogRecord(
            {"name": "root", "levelno": level, "msg": message, **options}
        )
        return handler.filter(record)

    assert is_shown(logging.WARNING, "Set decoder to none as ctc_weight==1.0")
    assert not is_shown(logging.WARNING, "Set decoder to none as ctc_weight==1.0")
    assert is_shown(logging.INFO, "=== [START] stage: train ===")
    assert not is_shown(logging.INFO, "Tip: try installing litlogger")
    error = (ValueError, ValueError(), None)
    assert not is_shown(logging.ERROR, "Stage 'train' failed", exc_info=error)


@pytest.mark.parametrize(
    ("error", "message", "explained"),
    [
        (ValueError, "noise.scp is empty", "noise.scp is empty"),
        (
            RuntimeError,
            "Original error: Cannot read a.wav: no",
            "Cannot read a.wav: no",
        ),
        (RuntimeError, "Original error: no such attribute", None),
    ],
)
def test_error_is_said_without_its_traceback(error, message, explained):
    of_a_worker = (
        "Caught an error in DataLoader worker process 0.\nOriginal Traceback (most "
        f'recent call last):\n  File "x.py", line 1\n{error.__name__}: {message}\n'
    )
    assert console.explain(error(message)) == explained
    assert console.explain(error(of_a_worker)) == explained
