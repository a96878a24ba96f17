"""The options that say which trained model a command loads."""

import argparse
from pathlib import Path

from espnet_fastformer.inference.experiment import CONFIG, find_model_file


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--exp``, ``--asr_train_config`` and ``--asr_model_file``."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--exp",
        type=Path,
        help="directory of an experiment of ESPnet2 or of the recipe, with config.yaml "
        "and *.pth",
    )
    group.add_argument("--asr_train_config", type=Path, help="default: EXP/config.yaml")
    group.add_argument(
        "--asr_model_file",
        type=Path,
        help="default: the average over the best epochs in EXP, by a criterion of the "
        "validation set: valid.acc.ave.pth, if the training made it",
    )


def check_model_options(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> None:
    """Exit with an error if the options name no model."""
    if args.exp is None and None in (args.asr_train_config, args.asr_model_file):
        parser.error("--exp is needed, or --asr_train_config and --asr_model_file")


def find_model(args: argparse.Namespace) -> tuple[Path, Path]:
    """Return the config and the file of parameters.

    Raises:
        ValueError: If there are none, or no telling which, or the config is none.
        OSError: If there is no config.
    """
    return (
        args.asr_train_config or args.exp / CONFIG,
        args.asr_model_file or find_model_file(args.exp),
    )


def explain(error: OSError) -> str:
    """Say why a file that is there may be missing to ESPnet."""
    return (
        f"{error} (ESPnet's config.yaml names files as they were seen from the "
        "directory that the training was started in)"
    )
