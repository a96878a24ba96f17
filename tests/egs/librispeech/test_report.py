"""What is left of an experiment for people to look at."""

import json

import matplotlib.image
import numpy as np
from src import report
from torch.utils.tensorboard import SummaryWriter


def test_results_are_of_one_model(tmp_path, monkeypatch):
    values = {f"WER_{column}": 1 for column in report.COLUMNS}
    for decoding, subset, checkpoint in (
        ("beam", "test", "new"),
        ("greedy", "test", "new"),
        ("wide", "test", "old"),
    ):
        directory = tmp_path / decoding / subset
        directory.mkdir(parents=True)
        (directory / "made_from.yaml").write_text(f"checkpoint: {checkpoint}\n")
        scores = json.dumps({"metrics.WER": {subset: values}})
        (directory.parent / "metrics.json").write_text(scores)
    for command in ("one", "two", "one"):
        monkeypatch.setattr(report, "command", command)
        report.record_command(tmp_path)
    report.write_results(tmp_path, "new")
    text = (tmp_path / "RESULTS.md").read_text()
    assert "```sh\none\ntwo\n```" in text
    assert "|beam/test|" in text and "|greedy/test|" in text and "wide" not in text


def test_curve_of_one_epoch_is_seen(tmp_path):
    with SummaryWriter(tmp_path / "tensorboard") as writer:
        writer.add_scalar("valid/loss", 3.0, 5)
    report.plot_training_curves(tmp_path)
    picture = matplotlib.image.imread(tmp_path / "training_curves.png")[..., :3]
    height, width, _ = picture.shape
    # Where the only point is, far from the legend.
    middle = picture[height // 3 : 2 * height // 3, width // 3 : 2 * width // 3]
    blue = np.array([0x1F, 0x77, 0xB4]) / 255
    assert (np.abs(middle - blue).max(axis=-1) < 0.02).sum() > 10


def test_curves_have_the_unit_of_results(tmp_path):
    with SummaryWriter(tmp_path / "tensorboard") as writer:
        for step, rate in ((5, 0.5), (10, 0.25)):
            writer.add_scalar("valid/loss", 3.0, step)
            writer.add_scalar("valid/cer_ctc", rate, step)
    loss, rates = report.plot_training_curves(tmp_path).axes
    assert rates.get_title() == "character error rate [%]"
    assert list(rates.lines[0].get_ydata()) == [50.0, 25.0]
    assert list(loss.lines[0].get_ydata()) == [3.0, 3.0]
