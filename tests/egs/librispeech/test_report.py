"""What is left of an experiment for people to look at."""

import importlib

import matplotlib.image
import numpy as np
from torch.utils.tensorboard import SummaryWriter

from .conftest import RECIPE_DIR


def test_curve_of_one_epoch_is_seen(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(RECIPE_DIR)
    report = importlib.import_module("src.report")
    with SummaryWriter(tmp_path / "tensorboard") as writer:
        writer.add_scalar("valid/loss", 3.0, 5)
    report.plot_training_curves(tmp_path)
    picture = matplotlib.image.imread(tmp_path / "training_curves.png")[..., :3]
    height, width, _ = picture.shape
    # Where the only point is, far from the legend.
    middle = picture[height // 3 : 2 * height // 3, width // 3 : 2 * width // 3]
    blue = np.array([0x1F, 0x77, 0xB4]) / 255
    assert (np.abs(middle - blue).max(axis=-1) < 0.02).sum() > 10
