"""The options that say which trained model a command loads."""

import argparse
from collections.abc import Callable
from pathlib import Path

from espnet_fastformer.inference.experiment import open_experiment


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--exp``, ``--asr_train_config`` and ``--asr_model_file``."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--exp",
        type=Path,
        help="directory of an experiment of ESPnet2 or of the recipe, with config.yaml "
        "and *.pth, or a packed model: TAG.zip or model_pack/",
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


def load_by_options[Model](
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    load: Callable[[Path, Path], Model],
) -> Model:
    """Call ``load`` with the config and the file of parameters; exit with its error."""
    try:
        if args.asr_train_config and args.asr_model_file:
            return _load(args.asr_train_config, args.asr_model_file, load)
        with open_experiment(args.exp, args.asr_model_file) as (config, model_file):
            return _load(args.asr_train_config or config, model_file, load)
    except OSError as error:
        parser.error(f"{error.filename or args.exp}: {error.strerror or error}")
    except ValueError as error:
        parser.error(str(error))


def _load[Model](
    config: Path, model_file: Path, load: Callable[[Path, Path], Model]
) -> Model:
    for path in (config, model_file):
        path.open("rb").close()
    try:
        return load(config, model_file)
    except OSError as error:
        raise ValueError(
            f"{error} (ESPnet's config.yaml names files as they were seen from the "
            "directory that the training was started in)"
        ) from error
