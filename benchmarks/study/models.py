"""Models of a row: how large they are, and how they are made equally large."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.models import build_model

from .mixed_encoder import register
from .recipe import parse_asr_config

register()

# Sizes are multiples of this.
STEP = 8


def parse_options(asr_config: Mapping[str, Any], token_type: str) -> argparse.Namespace:
    """Read options of ESPnet2 as the recipe reads them from a file.

    Raises:
        ValueError: The recipe cannot pass one on to ESPnet3.
        SystemExit: ESPnet2 does not know one.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "train.yaml"
        path.write_text(yaml.safe_dump(dict(asr_config)), encoding="utf-8")
        return parse_asr_config(path, ["--token_type", token_type])


def count_parameters(args: argparse.Namespace, tokens: Sequence[str]) -> int:
    """Return the number of parameters of ESPnet's model, without computing any."""
    with torch.device("meta"):
        model = build_model(args, tokens)
    return sum(parameter.numel() for parameter in model.parameters())


def fit_size(
    args: argparse.Namespace, option: str, tokens: Sequence[str], parameters: int
) -> int:
    """Return the size that brings a model closest to a number of parameters.

    Args:
        args: Options of the model, whose ``encoder_conf`` gets the size.
        option: Option of ``encoder_conf`` that parameters grow linearly with.
        tokens: Names of the CTC's outputs.
        parameters: Number to meet.

    Raises:
        ValueError: The encoder's parameters do not depend on the option, or are too
            many at its least size.
    """
    counts = []
    for size in (STEP, 2 * STEP):
        args.encoder_conf = {**args.encoder_conf, option: size}
        counts.append(count_parameters(args, tokens))
    least, more = counts
    if more == least:
        raise ValueError(f"{option} does not change the size of {args.encoder}")
    size = STEP * (1 + round((parameters - least) / (more - least)))
    if size < STEP:
        raise ValueError(
            f"{args.encoder} has {least:,} parameters with {option}: {STEP} already, "
            f"and should have {parameters:,}"
        )
    return size
