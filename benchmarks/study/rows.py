"""The rows of a study: what they have in common, and what each has of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .models import count_parameters, fit_size, parse_options

# What updates and batches are counted by.
NEEDED = ("batch_bins", "encoder_conf", "max_epoch", "num_iters_per_epoch")
KEYS = {"anchors", "asr_config", "reference", "rows", "tolerance"}
# What a row may differ in from the others; the rest is what they are compared under.
DIFFERING = ("encoder", "encoder_conf", "model_conf")
ROW_KEYS = {*DIFFERING, "fit", "time_of"}


@dataclass(frozen=True)
class Row:
    """One encoder.

    Attributes:
        name: What the tables call it.
        group: Group that it belongs to.
        asr_config: All of its ESPnet2 training config, but for a size that is still to
            be fitted.
        fit: Option of ``encoder_conf`` that is that size.
        time_of: Row whose training time it has, instead of a number of updates.
    """

    name: str
    group: str
    asr_config: Mapping[str, Any]
    fit: str = "linear_units"
    time_of: str | None = None


@dataclass(frozen=True)
class Study:
    """All rows of a file.

    Attributes:
        reference: Name of the row that the others are compared with.
        tolerance: Share by which their numbers of parameters may differ from its own.
        rows: Rows by name, in the order of the file.
    """

    reference: str
    tolerance: float
    rows: Mapping[str, Row]

    @property
    def groups(self) -> list[str]:
        """Names of the groups, in the order of the file."""
        return list(dict.fromkeys(row.group for row in self.rows.values()))

    def choose(self, names: Sequence[str] | None) -> list[Row]:
        """Return the rows of these names or groups; by default the first group.

        Raises:
            ValueError: There is no such row or group.
        """
        chosen = {}
        for name in names or self.groups[:1]:
            found = {
                row.name: row
                for row in self.rows.values()
                if name in (row.name, row.group)
            }
            if not found:
                raise ValueError(
                    f"there is no row or group {name!r}. Groups: "
                    f"{', '.join(self.groups)}. Rows: {', '.join(self.rows)}"
                )
            chosen |= found
        return list(chosen.values())


def read_study(path: str | Path) -> Study:
    """Read the rows of a YAML file such as ``conf/study.yaml``.

    Raises:
        ValueError: A key is missing or unknown, or a name given twice.
        OSError: The file cannot be read.
    """
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a mapping")
    _check_keys(path, content, KEYS)
    for key in KEYS - {"anchors"}:
        if key not in content:
            raise ValueError(f"{path} lacks {key}")
    common = content["asr_config"]
    for key in NEEDED:
        if key not in common:
            raise ValueError(f"{path}: asr_config lacks {key}")
    rows: dict[str, Row] = {}
    for group, members in content["rows"].items():
        for name, own in members.items():
            _check_keys(f"{path}: {name}", own, ROW_KEYS)
            if name in rows:
                raise ValueError(f"{path}: there are two rows {name}")
            differing = {key: own[key] for key in DIFFERING if key in own}
            rows[name] = Row(
                name,
                group,
                _merge(common, differing),
                **{key: own[key] for key in ("fit", "time_of") if key in own},
            )
    for name in (content["reference"], *(row.time_of for row in rows.values())):
        if name is not None and name not in rows:
            raise ValueError(f"{path} names a row that it does not have: {name}")
    if content["reference"] in {row.name for row in rows.values() if row.time_of}:
        raise ValueError(f"{path}: the reference has no time_of")
    return Study(content["reference"], content["tolerance"], rows)


def size_row(
    row: Row, token_type: str, tokens: Sequence[str], parameters: int | None
) -> tuple[dict[str, Any], int]:
    """Make a row as large as another one.

    Args:
        row: The row, whose size is fitted if it gives none.
        token_type: Kind of tokens.
        tokens: Names of the CTC's outputs.
        parameters: Number of parameters to come close to; None for the reference,
            whose size is given.

    Returns:
        The complete config, and the number of parameters.

    Raises:
        ValueError: No model can be made of it, or none of that size.
    """
    config = copy.deepcopy(dict(row.asr_config))
    args = parse_options(config, token_type)
    try:
        if row.fit not in config["encoder_conf"]:
            if parameters is None:
                raise ValueError(f"the reference gives no {row.fit}")
            size = fit_size(args, row.fit, tokens, parameters)
            config["encoder_conf"][row.fit] = size
            args.encoder_conf = config["encoder_conf"]
        return config, count_parameters(args, tokens)
    except Exception as error:  # of ESPnet, typeguard and PyTorch, of any class
        raise ValueError(f"{row.name}: {error}") from error


def with_budget(config: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """Return a config with ``ratio`` times the updates, in whole epochs.

    The schedule is stretched with it, if it has ``max_steps``: a training that a clock
    stops ends at a learning rate that is too high to compare it with others.
    """
    config = copy.deepcopy(dict(config))
    epochs = max(1, round(ratio * config["max_epoch"]))
    schedule = config.get("scheduler_conf", {})
    if "max_steps" in schedule:
        schedule["max_steps"] = round(
            schedule["max_steps"] * epochs / config["max_epoch"]
        )
    config["max_epoch"] = epochs
    return config


def _check_keys(where: str | Path, content: Mapping, known: set[str]) -> None:
    unknown = sorted(content.keys() - known)
    if unknown:
        raise ValueError(
            f"{where}: {', '.join(unknown)} is none of {', '.join(sorted(known))}"
        )


def _merge(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(common))
    for key, value in copy.deepcopy(dict(own)).items():
        if isinstance(value, dict):
            merged[key] = {**merged.get(key, {}), **value}
        else:
            merged[key] = value
    return merged
