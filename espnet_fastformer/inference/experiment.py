"""The files of an experiment that decoding needs."""

import logging
from pathlib import Path

import torch
import yaml
from espnet2.torch_utils.safe_torch_load import safe_torch_load

CONFIG = "config.yaml"


def find_model_file(exp: str | Path) -> Path:
    """Find the parameters that ESPnet2's or the recipe's training ended with.

    That is the average over the best epochs by the first of the training's criteria;
    else the only average, or the only file of parameters, that there is.

    Args:
        exp: Directory with ``config.yaml`` and ``*.pth``.

    Raises:
        ValueError: If there is none, or no telling which.
        OSError: If there is no config.
    """
    exp = Path(exp)
    config = yaml.safe_load((exp / CONFIG).read_text(encoding="utf-8"))
    # ESPnet2 writes [valid, acc, max], ESPnet3 [valid/acc, 3, max].
    criterion = [
        part
        for part in (config.get("best_model_criterion") or [[]])[0][:2]
        if isinstance(part, str)
    ]
    average = ".".join(criterion).replace("/", ".") + ".ave.pth"
    for pattern in (average, "*.ave.pth", "*.ave_*best.pth", "*.pth"):
        found = sorted(exp.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found)
            raise ValueError(
                f"{exp} has several models: {names}. choose by asr_model_file"
            )
    raise ValueError(f"{exp} has no model: no file *.pth")


def read_parameters(path: str | Path) -> dict[str, torch.Tensor]:
    """Read a file of parameters, of ESPnet's training or Lightning's.

    Raises:
        ValueError: If it holds something else, or parameters that are no numbers.
        OSError: If it cannot be read.
    """
    try:
        content = safe_torch_load(path, map_location="cpu")
    except OSError:
        raise
    except Exception as error:  # of zip, pickle, PyTorch or ESPnet
        raise ValueError(f"{path} holds no parameters: {error}") from error
    if isinstance(content, dict):
        content = content.get("state_dict", content)
    if not isinstance(content, dict) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise ValueError(f"{path} holds no parameters, but {type(content).__name__}")
    for name, value in content.items():
        if not value.isfinite().all():
            raise ValueError(
                f"{path}: {name} is infinite or no number, so its training failed"
            )
    return content


def check_parameters(model: torch.nn.Module, path: str | Path) -> None:
    """Check that a file has all parameters of a model; ESPnet loads what matches.

    Raises:
        ValueError: If one is missing. Those that the model has not are logged.
    """
    given, wanted = read_parameters(path).keys(), model.state_dict().keys()
    if missing := [name for name in wanted if name not in given]:
        raise ValueError(
            f"{path} is not of this config: it lacks {len(missing)} of {len(wanted)} "
            f"parameters, such as {missing[0]}"
        )
    if unused := [name for name in given if name not in wanted]:
        logging.warning(
            "%s: the config has no use for %d parameters, such as %s",
            path,
            len(unused),
            unused[0],
        )
