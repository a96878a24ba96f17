"""Trainings of the recipe that are stopped, by a signal or by a disk."""

import contextlib
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch

from .recipe import PREPARATION, Recipe, load

pytestmark = pytest.mark.slow

# Everything that draws random numbers.
RANDOM = (
    *("--encoder_conf", "dropout_rate=0.2", "--encoder_conf", "layer_drop_rate=0.2"),
    *("--decoder_conf", "dropout_rate=0.2"),
    *("--specaug", "specaug", "--specaug_conf", "apply_time_mask=false"),
    *("--speed_perturb_factors", "0.9", "1.0", "1.1"),
)


@pytest.fixture(scope="module")
def recipe(synthetic_corpus, tmp_path_factory) -> Recipe:
    root = tmp_path_factory.mktemp("interruption")
    recipe = Recipe(root, "aft", synthetic_corpus)
    recipe.run("--stages", *PREPARATION)
    return recipe


def train(max_epoch: int) -> tuple[str, ...]:
    return ("--stages", "train", "--max_epoch", str(max_epoch))


def assert_same_weights(checkpoint: Path, other: Path) -> None:
    checkpoint, other = load(checkpoint), load(other)
    assert checkpoint["global_step"] == other["global_step"]
    for name, weight in checkpoint["state_dict"].items():
        torch.testing.assert_close(weight, other["state_dict"][name])


def wait_for(checkpoint: Path, process: subprocess.Popen) -> None:
    while not checkpoint.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)


def test_killed_training_ends_as_one_that_was_not(recipe):
    before = recipe.timestamps()
    process = recipe.start(*RANDOM, *train(1000))
    last = recipe.exp_dir / "last.ckpt"
    wait_for(last, process)
    # In the middle of the second epoch, or of a later one.
    process.kill()
    process.communicate()
    done = load(last)["epoch"] + 1
    # As after a kill while a checkpoint is saved: the link to the last one is gone, and
    # one of the best has made room for another.
    last.unlink()
    next(recipe.exp_dir.glob("epoch*_valid.acc.ckpt")).unlink()

    output = recipe.run(*RANDOM, *train(done + 1))
    assert "Restored all states" in output
    assert recipe.timestamps() == before
    recipe.run(*RANDOM, *train(done + 1), exp="at_once")
    assert_same_weights(last, recipe.root / "at_once" / "last.ckpt")
    best = [
        load(path)["state_dict"]
        for path in recipe.exp_dir.glob("epoch*_valid.acc.ckpt")
    ]
    for name, weight in load(recipe.exp_dir / "valid.acc.ave.pth").items():
        mean = sum(state[name] for state in best) / len(best)
        torch.testing.assert_close(weight, mean)


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_sigterm_to_one_process_ends_all(recipe, rank):
    exp = f"sigterm_{rank}"
    nproc = ("--nproc", "1" if rank is None else "2", "--num_workers", "0")
    process = recipe.start(*train(1000), *nproc, exp=exp)
    last = recipe.root / exp / "last.ckpt"
    wait_for(last, process)
    # Python's own tracker of resources is one of them.
    children = psutil.Process(process.pid).children()
    started = [
        child for child in children if any("run.py" in x for x in child.cmdline())
    ]
    assert len(started) == (0 if rank is None else 1)
    (started[0] if rank == 1 else process).terminate()
    try:
        # All of them have its other end.
        process.communicate(timeout=1000)
    finally:
        process.kill()
        for hanging in filter(psutil.Process.is_running, started):
            hanging.kill()
    # One that has lost another says so, unless Lightning kills it before.
    assert process.returncode not in (0, None)
    assert rank == 1 or process.returncode == -signal.SIGTERM
    assert load(last)["global_step"] > 0


def test_ctrl_c_says_where_it_stopped(recipe):
    process = recipe.start(*train(1000), "--nproc", "2", exp="ctrl_c")
    wait_for(recipe.root / "ctrl_c" / "last.ckpt", process)
    process.send_signal(signal.SIGINT)
    # It ends when the last process that has its other end has.
    output, _ = process.communicate(timeout=1000)
    assert process.returncode == -signal.SIGINT
    assert re.search(r"Stopped in epoch \d+ of the training\. Give the same", output)
    assert output.count("Stopped ") == 1 and "Traceback" not in output


@contextlib.contextmanager
def mounted(directory: Path, *options: str):
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", *options, "tmpfs", directory]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


def test_full_disk_is_named_and_loses_nothing(recipe, tmp_path):
    with mounted(tmp_path / "disk", "size=500k") as disk:
        exp_dir = disk / "exp"
        output = recipe.fail(*train(1), exp=str(exp_dir))
        assert "The disk is full, here or in" in output
        assert f"from the last checkpoint: '{exp_dir}'" in output

        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        recipe.run(*train(1), exp=str(exp_dir))
        assert len(list(exp_dir.glob("step*.ckpt"))) == 1
        last, config = exp_dir / "last.ckpt", (exp_dir / "config.yaml").read_text()
        free = shutil.disk_usage(disk).free - last.stat().st_size
        (disk / "others").write_bytes(bytes(free))
        output = recipe.fail(*train(2), exp=str(exp_dir))
        assert f"give the same command again: '{exp_dir}'" in output
        assert load(last)["epoch"] == 0
        assert (exp_dir / "config.yaml").read_text() == config

        (disk / "others").unlink()
        recipe.run(*train(2), exp=str(exp_dir))
        assert load(last)["epoch"] == 1


def test_unwritable_directory_is_named(main, recipe, tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    with mounted(tmp_path / "disk", "ro") as disk:
        for exp_dir, message in {
            disk / "exp": f"[Errno 30] Read-only file system: '{disk}",
            file / "exp": f"[Errno 20] Not a directory: '{file}",
        }.items():
            with pytest.raises(SystemExit):
                main([*recipe.options, "--exp_dir", str(exp_dir)])
            assert f"error: {message}" in capsys.readouterr().err
