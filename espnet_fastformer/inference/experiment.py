"""The files of an experiment that decoding needs."""

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

CONFIG = "config.yaml"
# In a packed model: where the config and the parameters are.
_META = "meta.yaml"


@contextmanager
def open_experiment(
    exp: str | Path, asr_model_file: Path | None = None
) -> Iterator[tuple[Path, Path]]:
    """Find the config and the parameters of an experiment or a packed model.

    Args:
        exp: Directory of an experiment; archive that ESPnet or the recipe packed, or
            directory with its files, such as ``model_pack``.
        asr_model_file: Parameters, if they are not to be found.

    Yields:
        The config and the file of parameters, which are there while this is open. The
        config of a packed model names its files where they are now.

    Raises:
        ValueError: If there are none, or no telling which, or the config is none.
        OSError: If there is no config.
    """
    with TemporaryDirectory() as scratch:
        root = exp = Path(exp)
        if exp.is_file():
            root = Path(scratch, "unpacked")
            _unpack(exp, root)
        if not exp.exists() or (root / CONFIG).exists():
            yield root / CONFIG, asr_model_file or find_model_file(root)
            return
        if not (root / _META).exists():
            raise ValueError(
                f"{exp} has no {CONFIG}, as experiments have, and no {_META}, as "
                "packed models have"
            )
        meta = read_config(root / _META)
        try:
            config = _join(root, meta["yaml_files"]["asr_train_config"])
            model_file = _join(root, meta["files"]["asr_model_file"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{exp}: its {_META} names no asr_train_config and asr_model_file, so "
                "that it is no model for speech recognition"
            ) from error
        located = Path(scratch, CONFIG)
        content = yaml.safe_dump(_locate(read_config(config), root))
        located.write_text(content, encoding="utf-8")
        yield located, asr_model_file or model_file


def _unpack(archive: Path, directory: Path) -> None:
    # Not for --help: this imports PyTorch's neighbours.
    from espnet2.main_funcs.pack_funcs import Archiver

    try:
        with Archiver(archive) as members:
            for member in members:
                members.extract(member, directory)
    except (
        ValueError,
        EOFError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{archive} is no directory, and no archive that ESPnet packs: {error}"
        ) from error


def _join(root: Path, name: str) -> Path:
    # ESPnet packs files outside the working directory by their absolute names.
    return root / name.lstrip("/")


def _locate(value: Any, root: Path) -> Any:
    """Replace names of files below root by where they are."""
    if isinstance(value, dict):
        return {key: _locate(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [_locate(item, root) for item in value]
    if isinstance(value, str) and os.path.isfile(path := _join(root, value)):
        return str(path.absolute())
    return value


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
        for criterion in read_config(exp / CONFIG).get("best_model_criterion") or []
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


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a file of options.

    Raises:
        ValueError: If it is none.
        OSError: If it cannot be read.
    """
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML file: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(
            f"{path} has no options, as ESPnet's training writes them there, but "
            f"{config!r}"
        )
    return config
