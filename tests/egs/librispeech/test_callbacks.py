"""What the recipe's callbacks say and do."""

import os
from types import SimpleNamespace

import pytest
import torch
from src import callbacks


@pytest.fixture
def check_schedule():
    """Start a training of 100 updates with a scheduler."""
    callback = callbacks.CheckSchedule()

    def start(scheduler, ckpt_path=None):
        trainer = SimpleNamespace(
            ckpt_path=ckpt_path,
            estimated_stepping_batches=100,
            lr_scheduler_configs=[SimpleNamespace(scheduler=scheduler)],
        )
        callback.on_train_start(trainer, None)

    return start


def test_schedule_of_another_length_is_warned_of(check_schedule, caplog):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    schedulers = torch.optim.lr_scheduler
    check_schedule(schedulers.OneCycleLR(optimizer, 1.0, total_steps=109))
    check_schedule(schedulers.StepLR(optimizer, 1))
    check_schedule(SimpleNamespace(max_steps=50), "last.ckpt")
    assert not caplog.text
    check_schedule(schedulers.OneCycleLR(optimizer, 1.0, total_steps=111))
    assert "Give --scheduler_conf total_steps=100" in caplog.text
    check_schedule(SimpleNamespace(max_steps=89))
    assert "Give --scheduler_conf max_steps=100" in caplog.text


def test_average_is_copied_where_there_are_no_links(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError("exFAT has no links")

    monkeypatch.setattr(os, "symlink", refuse)
    (tmp_path / "partial").mkdir()
    for number in (1, 2):
        (tmp_path / f"valid.acc.ave_{number}best.pth").write_text(str(number))
        callbacks._link_average(tmp_path, "valid.acc")
        assert (tmp_path / "valid.acc.ave.pth").read_text() == str(number)
