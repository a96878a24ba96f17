"""The files of an experiment that decoding needs."""

from pathlib import Path

import yaml

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
