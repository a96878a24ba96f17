"""What is left of an experiment for people to look at.

ESPnet3 leaves ``metrics.json`` and event files; ESPnet2 has RESULTS.md and curves.
"""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import sys
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

import torch
from espnet3.utils.logging_utils import get_git_metadata
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import espnet_fastformer

from .configs import write_at_once
from .metrics import COLUMNS, columns

RESULTS = "RESULTS.md"
CURVES = "training_curves.png"
COMMANDS = "commands.txt"
# What a decoded subset was made from.
MADE_FROM = "made_from.yaml"

# The command line of this process, unless another one keeps it.
command = ""


def record_command(exp_dir: Path) -> None:
    """Keep the command with those that made what is in an experiment.

    Args:
        exp_dir: Directory of the experiment.
    """
    file = exp_dir / COMMANDS
    commands = file.read_text("utf-8").splitlines() if file.is_file() else []
    if command and command not in commands:
        write_at_once("\n".join([*commands, command, ""]), file)


def write_results(exp_dir: Path, checkpoint: str) -> str:
    """Write ``RESULTS.md``, the scores of what a model has decoded, in ESPnet's style.

    Args:
        exp_dir: Directory of the experiment.
        checkpoint: Digest of the model. What an earlier one of the experiment decoded
            is left out.

    Returns:
        The text.
    """
    scores = {}
    for path in sorted(exp_dir.glob("*/metrics.json")):
        # A packed model holds a copy of its scores.
        if not (path.parent / "meta.yaml").exists():
            scores[path.parent.name] = {
                metric: {
                    subset: values
                    for subset, values in subsets.items()
                    if _decoded_by(path.parent / subset) == checkpoint
                }
                for metric, subsets in json.loads(path.read_text("utf-8")).items()
            }
    git = get_git_metadata(Path(__file__).parent)
    lines = [
        "# RESULTS",
        "",
        "## Environments",
        "",
        f"- date: `{time.strftime('%a %b %d %H:%M:%S %Z %Y')}`",
        f"- python version: `{platform.python_version()}`",
        f"- espnet version: `{version('espnet')}`",
        f"- espnet-fastformer version: `{espnet_fastformer.__version__}`",
        f"- pytorch version: `{torch.__version__}`",
        f"- Git hash: `{git.get('commit')}` ({git.get('worktree')})",
        f"- machine: `{_machine()}`",
        "",
        f"## {exp_dir.name}",
        "",
        f"- configs: `config.yaml`, and `{MADE_FROM}` of each dataset decoded",
        f"- training curves: `{CURVES}`",
        "- commands:",
        "",
        "```sh",
        *(exp_dir / COMMANDS).read_text("utf-8").splitlines(),
        "```",
    ]
    for rate in ("WER", "CER"):
        lines += ["", f"### {rate}", "", *_table(rate, scores)]
    text = "\n".join(lines) + "\n"
    (exp_dir / RESULTS).write_text(text, encoding="utf-8")
    return text


def error_rates(exp_dir: Path) -> str:
    """Return the tables of ``RESULTS.md``, or that there are none yet.

    Args:
        exp_dir: Directory of the experiment.
    """
    results = exp_dir / RESULTS
    text = results.read_text(encoding="utf-8") if results.is_file() else ""
    _, heading, tables = text.partition("### WER")
    return f"{heading}{tables}".strip() or "The stage measure has not scored it."


def summarize(exp_dir: Path, has_ctc: bool) -> str:
    """Say how well a model does, where that is written, and how to use it.

    Args:
        exp_dir: Directory of the experiment, with ``RESULTS.md``.
        has_ctc: Whether the model can be decoded greedily.
    """
    # Beside this Python, be its environment active or not.
    program = shutil.which("espnet-fastformer") or str(
        Path(sys.executable).with_name("espnet-fastformer")
    )
    command = [program, "transcribe", "--exp", str(exp_dir)]
    if not has_ctc:
        command += ["--beam_size", "10"]
    return (
        f"\n{error_rates(exp_dir)}\n\nResults: {exp_dir / RESULTS}\n"
        f"Transcribe recordings with: {shlex.join(command)} FILE"
    )


def plot_training_curves(exp_dir: Path) -> Figure | None:
    """Draw what TensorBoard logged in all runs of a training into one picture.

    Args:
        exp_dir: Directory of the experiment.

    Returns:
        What was written to ``training_curves.png``; None if nothing was logged.
    """
    curves = read_scalars(exp_dir / "tensorboard")
    panels = {
        "loss": ("train/loss", "valid/loss"),
        "accuracy [%]": ("train/acc", "valid/acc"),
        "character error rate [%]": ("valid/cer_ctc", "valid/cer"),
        "learning rate": tuple(name for name in curves if name.startswith("lr-")),
    }
    panels = {
        title: [name for name in names if name in curves]
        for title, names in panels.items()
    }
    panels = {title: names for title, names in panels.items() if names}
    if not panels:
        return None
    # A figure of its own, without pyplot, needs no display.
    figure = Figure((4 * len(panels), 3.5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, names) in zip(axes, panels.items(), strict=True):
        unit = 100 if title.endswith("[%]") else 1
        for name in names:
            steps, values = zip(*sorted(curves[name].items()), strict=True)
            # A line of a single point is none.
            marker = "o" if len(steps) == 1 else None
            values = [unit * value for value in values]
            axis.plot(steps, values, marker=marker, label=name)
        axis.set(title=title, xlabel="update")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(exp_dir / CURVES, dpi=120)
    return figure


def read_scalars(directory: Path) -> dict[str, dict[int, float]]:
    """Return every curve by its name as a map from step to value.

    Args:
        directory: TensorBoard's event files, also of several runs.

    A run that goes on from a checkpoint logs again the steps that its predecessor made
    after it; the later value counts.
    """
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for file in sorted(directory.glob("**/events.*"), key=lambda p: p.stat().st_mtime):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        for name in events.Tags()["scalars"]:
            curves[name].update((e.step, e.value) for e in events.Scalars(name))
    return curves


def _decoded_by(subset: Path) -> str:
    return OmegaConf.load(subset / MADE_FROM).checkpoint


def _machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"CPU, {torch.get_num_threads()} threads"


def _table(rate: str, scores: dict[str, dict]) -> list[str]:
    header = ["dataset", *COLUMNS]
    header[header.index("SErr")] = "S.Err"
    rows = [header, ["---"] * len(header)]
    for decoding, metrics in scores.items():
        for metric, datasets in metrics.items():
            if metric.endswith(f".{rate}"):
                for dataset, values in datasets.items():
                    numbers = [str(values[key]) for key in columns(rate).values()]
                    rows.append([f"{decoding}/{dataset}", *numbers])
    return ["|" + "|".join(row) + "|" for row in rows]
