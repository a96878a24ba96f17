"""The files of an experiment that decoding needs."""

from pathlib import Path

import yaml

CONFIG = "config.yaml"


def find_model_file(exp: str | Path) -> Path:
    """Find the parameters that ESPnet2's or the recipe's training ended with.

    That is the average over the best epochs by the training's criterion: by valid.acc
    if it is one of them, else by the first of the validation set, else by the first;
    else the only average, or the only file of parameters, that there is.

    Args:
        exp: Directory with ``config.yaml`` and ``*.pth``.

    Raises:
        ValueError: If there is none, or no telling which, or the config is none.
        OSError: If there is no config.
    """
    exp = Path(exp)
    # ESPnet2 writes [valid, acc, max], ESPnet3 [valid/acc, 3, max].
    criteria = [
        ".".join(p for p in criterion[:2] if isinstance(p, str)).replace("/", ".")
        for criterion in _read_config(exp / CONFIG).get("best_model_criterion") or []
    ]
    # The first of ESPnet2's default is the loss of the training set.
    criteria.sort(key=lambda name: (name != "valid.acc", not name.startswith("valid")))
    averages = [f"{name}.ave.pth" for name in criteria]
    for pattern in (*averages, "*.ave.pth", "*.ave_*best.pth", "*.pth"):
        found = sorted(exp.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found)
            raise ValueError(
                f"{exp} has several models: {names}. choose by asr_model_file"
            )
    raise ValueError(f"{exp} has no model: no file *.pth")


def _read_config(path: Path) -> dict:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML file: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(
            f"{path} has no options, as ESPnet's training writes them there, but "
            f"{config!r}"
        )
    return config
