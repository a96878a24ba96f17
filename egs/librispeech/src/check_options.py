"""Find what is wrong with a training config before anything has started.

ESPnet takes the values of a file as they are, and fails where it uses them.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from espnet2.tasks.abs_task import optim_classes, scheduler_classes
from espnet2.tasks.asr import ASRTask
from espnet2.train.abs_espnet_model import AbsESPnetModel
from typeguard import TypeCheckError

from espnet_fastformer.inference.features import LEAST_SAMPLES, least_samples

# Whole numbers, and the least of each.
LEAST = {
    "accum_grad": 1,
    "batch_bins": 1,
    "batch_size": 1,
    "keep_nbest_models": 1,
    "log_interval": 1,
    "max_epoch": 1,
    "min_batch_size": 1,
    "num_att_plot": 0,
    "num_iters_per_epoch": 1,
    "num_workers": 0,
    "seed": 0,
    "valid_batch_bins": 1,
    "valid_batch_size": 1,
}
# PyYAML takes a number for one if it has a point and a sign: 1.0e-3.
NUMBER_AS_TEXT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
# Batches that need a file of categories, which the recipe does not write.
CATEGORY_BATCHES = ("catbel", "catpow", "catpow_balance_dataset")
# Speech that is still speech.
SLOWEST, FASTEST = 0.5, 2.0
DURATIONS = "model_conf: transducer_multi_blank_durations"
PLAIN_LOSS = (
    "the plain loss (transducer_multi_blank_durations: []) needs warprnnt_pytorch, "
    "which espnet/tools/installers/install_warp-transducer.sh builds"
)
TOKENS = ("<blank>", "<unk>", "A", "<sos/eos>")


def check_asr_options(args: argparse.Namespace, config: str | Path) -> int:
    """Check the values of ESPnet2's options, which it takes from a file as they are.

    Args:
        args: All options, of the file and the command line.
        config: The file.

    Returns:
        Samples that the encoder needs to give one frame.

    Raises:
        ValueError: One is of the wrong kind, or no model, optimizer or scheduler can
            be made of them. The message names the option and the file.
    """
    _check_kinds(args, config)
    _check_numbers(args, config)
    _check_criteria(args, config)
    _check_batches(args, config)
    _check_scheduler(args, config)
    _check_transducer(args, config)
    model = _try("the model", args, config, _build_model, args)
    optimizer = _try("optim_conf", args, config, _build_optimizer, args)
    if args.scheduler is not None:
        scheduler = scheduler_classes[args.scheduler]
        conf = args.scheduler_conf
        _try("scheduler_conf", args, config, scheduler, optimizer, **conf)
    return LEAST_SAMPLES if model is None else least_samples(model)


def check_device(args: argparse.Namespace, config: str | Path, on_gpu: bool) -> None:
    """Check that a model can be trained on a CPU, if it is to be.

    Args:
        args: All options, of the file and the command line.
        config: The file.
        on_gpu: Whether a GPU is to be trained on.

    Raises:
        ValueError: It cannot. The message names the option, the file and the remedy.
    """
    if _is_multi_blank(args) and not on_gpu:
        raise ValueError(
            f"{DURATIONS} in {config}: ESPnet has this loss for GPUs only. Train where "
            f"there is one; on a CPU, {PLAIN_LOSS}"
        )


def check_run_options(options: argparse.Namespace) -> None:
    """Check the numbers among the recipe's own options.

    Raises:
        ValueError: One is out of range.
    """
    for name, least in {
        "nbpe": 1,
        "ngpu": 0,
        "nj": 1,
        "nproc": 1,
        "num_nodes": 1,
    }.items():
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, but is {value}")
    hours = options.max_hours
    if hours is not None and not 0 < hours < float("inf"):
        raise ValueError(f"--max_hours must be above 0, but is {hours}")
    factors = options.speed_perturb_factors or [1.0]
    if not all(SLOWEST <= factor <= FASTEST for factor in factors):
        raise ValueError(
            f"--speed_perturb_factors must be multiples of the speed from {SLOWEST} to "
            f"{FASTEST}, such as 0.9 1.0 1.1, but are {factors}"
        )


def _check_kinds(args: argparse.Namespace, config: str | Path) -> None:
    for action in ASRTask.get_parser()._actions:
        value = getattr(args, action.dest, None)
        if action.choices and value is not None and value not in action.choices:
            choices = ", ".join(map(str, filter(None, action.choices)))
            raise ValueError(
                f"{action.dest} in {config} must be one of {choices}, but is {value!r}"
            )
        is_mapping = isinstance(value, dict) or value is action.default
        if action.dest.endswith("_conf") and not is_mapping:
            raise ValueError(
                f"{action.dest} in {config} must be a mapping, but is {value!r}"
            )
        for key, v in value.items() if isinstance(value, dict) else ():
            if isinstance(v, str) and NUMBER_AS_TEXT.fullmatch(v):
                raise ValueError(
                    f"{action.dest}: {key} in {config} is text to YAML, not a number, "
                    f"which is written 1.0e-3 or 0.001: {v!r}"
                )


def _check_numbers(args: argparse.Namespace, config: str | Path) -> None:
    for name, least in LEAST.items():
        value = getattr(args, name)
        is_list = name == "keep_nbest_models" and isinstance(value, list) and value
        values = value if is_list else [value]
        if value is not None and any(type(v) is not int or v < least for v in values):
            raise ValueError(
                f"{name} in {config} must be a whole number from {least} on, but is "
                f"{value!r}"
            )


def _check_criteria(args: argparse.Namespace, config: str | Path) -> None:
    criteria = args.best_model_criterion
    if not criteria or any(
        not isinstance(criterion, (list, tuple))
        or len(criterion) != 3
        or criterion[0] not in ("train", "valid")
        or criterion[2] not in ("min", "max")
        for criterion in criteria
    ):
        raise ValueError(
            f"best_model_criterion in {config} must be a list of [valid, acc, max] or "
            f"the like, but is {criteria!r}"
        )


def _check_batches(args: argparse.Namespace, config: str | Path) -> None:
    if args.shuffle_within_batch:
        raise ValueError(
            f"shuffle_within_batch in {config}: the batches of all processes are made "
            "together here, which ESPnet3 does not shuffle like that. Remove it"
        )
    for batch_type in filter(None, (args.batch_type, args.valid_batch_type)):
        if batch_type in CATEGORY_BATCHES:
            raise ValueError(
                f"batch_type in {config}: {batch_type} needs a file of categories, "
                "which this recipe has not. Set batch_type: numel and batch_bins"
            )
        lengths = args.fold_length
        has_lengths = isinstance(lengths, list) and len(lengths) == 2
        if batch_type == "folded" and not has_lengths:
            raise ValueError(
                f"batch_type in {config} is folded (the default), which needs "
                f"fold_length: [SAMPLES, TOKENS], but that is {lengths}. Set it, "
                "or batch_type: numel and batch_bins"
            )


def _check_scheduler(args: argparse.Namespace, config: str | Path) -> None:
    if args.scheduler == "warmupreducelronplateau":
        raise ValueError(
            f"scheduler in {config}: ESPnet3 cannot step {args.scheduler} both after "
            "updates and after epochs. Set reducelronplateau or warmuplr"
        )


def _is_multi_blank(args: argparse.Namespace) -> bool:
    durations = args.model_conf.get("transducer_multi_blank_durations")
    return args.decoder == "transducer" and bool(durations)


def _check_transducer(args: argparse.Namespace, config: str | Path) -> None:
    if args.decoder != "transducer" or _is_multi_blank(args):
        return
    # ESPnet imports it when it builds the model, for decoding too.
    if importlib.util.find_spec("warprnnt_pytorch") is None:
        raise ValueError(
            f"{DURATIONS} in {config} is empty: {PLAIN_LOSS}. For training on a GPU, "
            "[2] sets a loss that comes with ESPnet"
        )


def _try(
    name: str,
    args: argparse.Namespace,
    config: str | Path,
    build: Callable[..., Any],
    *positional: Any,
    **options: Any,
) -> Any:
    """Build something, or say which option and file keep it from being built."""
    try:
        return build(*positional, **options)
    except Exception as error:  # of ESPnet, typeguard and PyTorch, of any class
        reason = str(error)
        if not isinstance(error, (TypeError, TypeCheckError, ValueError)):
            # Little more than the class tells what is wrong.
            reason = f"{type(error).__name__}: {reason}"
        # Python begins with the function: FastformerEncoder.__init__() got ...
        reason = re.sub(r"^[\w.]+\(\) ", "", reason)
        for option, conf in vars(args).items():
            for key in conf if option.endswith("_conf") and conf else ():
                if re.search(rf"""['"]{re.escape(key)}['"]""", reason):
                    choice = getattr(args, option.removesuffix("_conf"), option)
                    if "unexpected keyword" in reason:
                        reason = f"{choice} has no such option"
                    name = f"{option}: {key}"
        raise ValueError(f"{name} in {config}: {reason}") from error


def _build_model(args: argparse.Namespace) -> AbsESPnetModel | None:
    if args.frontend != "default":
        # Some download a model of their own, or have their own idea of a device.
        return None
    args = copy.deepcopy(args)
    args.token_list = TOKENS
    # Its statistics are not there yet.
    args.normalize = None
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with torch.device("meta"):
            return ASRTask.build_model(args)
    finally:
        logging.disable(disabled)


def _build_optimizer(args: argparse.Namespace) -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.zeros(1))
    return optim_classes[args.optim]([parameter], **args.optim_conf)
