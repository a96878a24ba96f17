"""ESPnet2's training and decoding options, as ESPnet3 wants them.

ESPnet3 does not read the files in ``conf/``, which are ESPnet2's. The recipe reads the
very same files, through ESPnet2's own parser, and puts each option where ESPnet3 keeps
it.
"""

from __future__ import annotations

import argparse
import inspect
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from espnet2.bin.asr_inference import Speech2Text
from espnet2.schedulers.abs_scheduler import AbsEpochStepScheduler
from espnet2.tasks.abs_task import optim_classes, scheduler_classes
from espnet2.tasks.asr import ASRTask
from lightning.pytorch.utilities import rank_zero_only

logger = logging.getLogger(__name__)

MODEL_OPTIONS = {
    "ctc_conf",
    "freeze_param",
    "init",
    "input_size",
    "joint_net_conf",
    *(
        name
        for choices in ASRTask.class_choices_list
        if choices.name != "preprocessor"
        for name in (choices.name, f"{choices.name}_conf")
    ),
}
# Arguments of ESPnet's CommonPreprocessor, by the same names. Token lists, decoding and
# scoring have no preprocessor here, so that only what is for training alone will do.
PREPROCESSOR_OPTIONS = {
    "noise_apply_prob",
    "noise_db_range",
    "noise_scp",
    "rir_apply_prob",
    "rir_scp",
    "short_noise_thres",
}
TRAINER_OPTIONS = {
    "accum_grad": "accumulate_grad_batches",
    "cudnn_benchmark": "benchmark",
    "detect_anomaly": "detect_anomaly",
    "grad_clip": "gradient_clip_val",
    "max_epoch": "max_epochs",
}
# Options of encoders and decoders that skip layers or branches in training.
SKIPPING_RATES = ("attn_branch_drop_rate", "layer_drop_rate", "stochastic_depth_rate")
# What only a model with an attention decoder logs.
ATTENTION_CRITERIA = ("acc", "cer", "loss_att", "wer")
# Read one by one in convert_training().
OTHER_OPTIONS = {
    "batch_bins",
    "batch_size",
    "batch_type",
    "best_model_criterion",
    "drop_last_iter",
    "fold_length",
    "ignore_init_mismatch",
    "init_param",
    "keep_nbest_models",
    "log_interval",
    "min_batch_size",
    "num_att_plot",
    "num_iters_per_epoch",
    "num_workers",
    "optim",
    "optim_conf",
    "preprocessor_conf",
    "scheduler",
    "scheduler_conf",
    "seed",
    "shuffle_within_batch",
    "sort_batch",
    "sort_in_batch",
    "token_type",
    "unused_parameters",
    "use_amp",
    "use_matplotlib",
    "use_tf32",
    "val_scheduler_criterion",
    "valid_batch_bins",
    "valid_batch_size",
    "valid_batch_type",
}
# They set what ESPnet2 shows and keeps, or how it is launched; nothing that is trained.
IGNORED_OPTIONS = {
    "config",
    "create_graph_in_tensorboard",
    "cudnn_deterministic",
    "cudnn_enabled",
    "log_level",
    "required",
    "use_tensorboard",
}

# What decodes with options that ESPnet's Speech2Text has not.
SPEECH2TEXT = "src.speech2text.LongSpeech2Text"
SPEECH2TEXT_OPTIONS = {
    "best_path": ("true or false", lambda value: type(value) is bool),
    "pooling_window": (
        "a number of seconds above 0",
        lambda value: type(value) in (int, float) and value > 0,
    ),
    "chunk_size": (
        "a whole number above 0",
        lambda value: type(value) is int and value > 0,
    ),
    "num_left_chunks": (
        "a whole number from 0 on",
        lambda value: type(value) is int and value >= 0,
    ),
}


def parse_asr_config(
    config: str | Path, overrides: Sequence[str] = ()
) -> argparse.Namespace:
    """Read a training config of ESPnet2, checked by ESPnet2's parser.

    Args:
        config: YAML file as ``espnet2.bin.asr_train --config`` takes it.
        overrides: Further options of ``asr_train``, such as
            ``["--encoder_conf", "num_blocks=4"]``.

    Returns:
        All options, the missing ones with ESPnet2's defaults.

    Raises:
        ValueError: An option is set that this recipe cannot pass on to ESPnet3, the
            file's ``token_type`` is not that of the overrides, or these name another
            file.
        SystemExit: ESPnet2 does not know an option or its value.
    """
    parser = ASRTask.get_parser()
    parser.prog = "run.py"
    parser.usage = "run.py [options of run.py] [options of espnet2.bin.asr_train]"
    # What asr.sh (feats_normalize) sets unless told otherwise. Tokens are the recipe's
    # to choose.
    parser.set_defaults(normalize="global_mvn", token_type=None)
    defaults = vars(parser.parse_args([]))
    try:
        args = parser.parse_args(["--config", str(config), *overrides])
    except yaml.YAMLError as error:
        raise ValueError(f"{config}: {error}") from error
    if args.config != str(config):
        raise ValueError(f"--config {args.config}: give it as --asr_config")
    # Reading the file has made its values the defaults.
    token_type = parser.get_default("token_type")
    if token_type not in (None, args.token_type):
        raise ValueError(
            f"token_type: {token_type} in {config} is not --token_type "
            f"{args.token_type}: give --token_type {token_type}, or remove it there"
        )
    known = (
        MODEL_OPTIONS
        | PREPROCESSOR_OPTIONS
        | TRAINER_OPTIONS.keys()
        | OTHER_OPTIONS
        | IGNORED_OPTIONS
    )
    unknown = sorted(
        name
        for name, value in vars(args).items()
        if name not in known and value != defaults[name]
    )
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} in {config} or on the command line: ESPnet3 has no "
            "such option. Remove it, or train with espnet2.bin.asr_train."
        )
    return args


def convert_training(args: argparse.Namespace, on_gpu: bool) -> dict[str, Any]:
    """Turn ESPnet2's training options into an ESPnet3 training config.

    Args:
        args: From :func:`parse_asr_config`.
        on_gpu: Whether a GPU is to be trained on.

    Returns:
        The sections ``model``, ``optimizer``, ``scheduler``, ``dataset.preprocessor``,
        ``dataloader`` and ``trainer``, and what is in none of them, to be merged into a
        config that has the rest.

    Raises:
        ValueError: An option has a value that ESPnet3 cannot follow.
    """
    model = _changed(args, MODEL_OPTIONS)
    for option in [*model]:
        if f"{option}_conf" in MODEL_OPTIONS:
            # ESPnet3 would add the arguments of the default choice.
            model[f"{option}_conf"] = getattr(args, f"{option}_conf")
    trainer = {name: getattr(args, option) for option, name in TRAINER_OPTIONS.items()}
    if args.unused_parameters or _skips_layers(args):
        trainer["strategy"] = "ddp_find_unused_parameters_true"
    if args.log_interval is not None:
        trainer["log_every_n_steps"] = args.log_interval
    # A command line gives a list, of which ESPnet3 can keep only the longest average.
    keep = args.keep_nbest_models
    num_averaged = keep if isinstance(keep, int) else max(keep)
    if args.use_amp:
        trainer["precision"] = mixed_precision(on_gpu)
    for init_param in args.init_param:
        file = init_param.partition(":")[0]
        if not Path(file).is_file():
            raise ValueError(
                f"--init_param {init_param}: there is no file {file}. A colon ends the "
                "name of the file"
            )
    return {
        "seed": args.seed,
        "init_param": list(args.init_param),
        "ignore_init_mismatch": args.ignore_init_mismatch,
        "use_tf32": args.use_tf32,
        "num_att_plot": args.num_att_plot if args.use_matplotlib else 0,
        "model": model,
        "dataset": {
            "preprocessor": {
                **_changed(args, PREPROCESSOR_OPTIONS),
                **args.preprocessor_conf,
            }
        },
        "optimizer": _target(optim_classes[args.optim], args.optim_conf),
        **_scheduler(args),
        "best_model_criterion": [
            [f"{phase}/{name}", num_averaged, mode]
            for phase, name, mode in kept_criteria(args)
        ],
        "dataloader": {
            "train": {
                "iter_factory": {
                    "seed": args.seed,
                    "num_workers": args.num_workers,
                    "num_iters_per_epoch": args.num_iters_per_epoch,
                    "shuffle_within_batch": args.shuffle_within_batch,
                    "batches": _batches(
                        args, args.batch_type, args.batch_size, args.batch_bins
                    ),
                }
            },
            "valid": {
                "iter_factory": {
                    "num_workers": args.num_workers,
                    "batches": _batches(
                        args,
                        args.valid_batch_type or args.batch_type,
                        args.valid_batch_size or args.batch_size,
                        args.valid_batch_bins or args.batch_bins,
                    ),
                }
            },
        },
        "trainer": trainer,
    }


def attends(args: argparse.Namespace) -> bool:
    """Tell whether a model has an attention decoder."""
    has_decoder = args.decoder not in (None, "transducer")
    return has_decoder and args.model_conf.get("ctc_weight") != 1.0


def default_search(args: argparse.Namespace) -> str:
    """Name the search of ``conf/decode_*.yaml`` that a model needs."""
    if args.decoder == "transducer":
        return "transducer"
    return "asr" if attends(args) else "ctc"


def kept_criteria(args: argparse.Namespace) -> list[Sequence[str]]:
    """Return the criteria that checkpoints can be kept by, the one to decode first.

    ESPnet2 passes over what a model does not log, which ends a training in Lightning.

    Raises:
        ValueError: There is none.
    """
    unknown = () if attends(args) else ATTENTION_CRITERIA
    kept, left_out = [], []
    for criterion in args.best_model_criterion:
        phase, name, _ = criterion
        # In training, ESPnet3 would take the value of the epoch's last batch.
        is_kept = phase == "valid" and name not in unknown
        (kept if is_kept else left_out).append(criterion)
    names = ", ".join("/".join(criterion[:2]) for criterion in left_out)
    reason = (
        "which ESPnet3 does not average over an epoch (train) or this model does not "
        f"log ({', '.join(ATTENTION_CRITERIA)} are of attention decoders)"
    )
    if not kept:
        raise ValueError(
            f"best_model_criterion has only {names}, {reason}: give another one, such "
            "as valid,loss,min"
        )
    if left_out:
        warn = rank_zero_only(logger.warning)
        warn("best_model_criterion: %s left out, %s", names, reason)
    # The one that asr.sh decodes.
    return sorted(kept, key=lambda criterion: criterion[1] != "acc")


def convert_inference(path: str | Path) -> dict[str, Any]:
    """Turn a decoding config of ESPnet2 into an ESPnet3 inference config.

    Args:
        path: YAML file as ``espnet2.bin.asr_inference --config`` takes it. It may also
            set ``best_path``, ``pooling_window``, ``chunk_size`` and
            ``num_left_chunks``, as of :class:`~src.speech2text.LongSpeech2Text`.

    Returns:
        ``model``, the arguments of ESPnet's ``Speech2Text``, and ``batch_size`` if the
        file sets it.

    Raises:
        ValueError: ``Speech2Text`` has no such argument, a value is of the wrong kind,
            or needs another one.
    """
    try:
        options = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"{path} must be a mapping of options, but is {options!r}")
    known = inspect.signature(Speech2Text).parameters
    own = {key: options.pop(key) for key in SPEECH2TEXT_OPTIONS if key in options}
    own = {key: value for key, value in own.items() if value is not None}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} in {path}: espnet2.bin.asr_inference.Speech2Text "
            "has no such argument."
        )
    batch_size = options.pop("batch_size", None)
    for key, value in own.items():
        kind, is_valid = SPEECH2TEXT_OPTIONS[key]
        if not is_valid(value):
            raise ValueError(f"{key} in {path} must be {kind}, but is {value!r}")
    if "pooling_window" in own and not own.get("best_path") and batch_size != 1:
        raise ValueError(
            f"pooling_window in {path} needs batch_size: 1, or best_path: true"
        )
    if "num_left_chunks" in own and "chunk_size" not in own:
        raise ValueError(f"num_left_chunks in {path} needs chunk_size")
    if any(own.values()):
        options |= {"_target_": SPEECH2TEXT, **own}
    return {
        "model": options,
        **({} if batch_size is None else {"batch_size": batch_size}),
    }


def mixed_precision(on_gpu: bool) -> str:
    """Name the precision of ESPnet2's ``use_amp`` that this machine is fast in.

    Like ESPnet2, bfloat16 on GPUs that have it and float16 on others. ESPnet2 knows no
    mixed precision on CPUs; bfloat16 is faster on those with instructions for it.
    """
    if on_gpu:
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "16-mixed"
    # Not in the oldest PyTorch that ESPnet takes.
    cpu = getattr(torch.cpu, "get_capabilities", dict)()
    has_bf16 = cpu.get("avx512_bf16") or cpu.get("amx_bf16")
    return "bf16-mixed" if has_bf16 else "32-true"


def _skips_layers(args: argparse.Namespace) -> bool:
    """Tell whether a step may leave layers out, and so parameters without gradient.

    Each process draws its own layers. Unless it is told, DDP takes it for an error.
    """
    return any(
        np.any(conf.get(rate) or 0.0)
        for conf in (args.encoder_conf, args.decoder_conf)
        for rate in SKIPPING_RATES
    )


def _changed(args: argparse.Namespace, options: Iterable[str]) -> dict[str, Any]:
    """Return those of the options that have not ESPnet2's defaults."""
    defaults = vars(ASRTask.get_parser().parse_args([]))
    return {
        option: getattr(args, option)
        for option in sorted(options)
        if getattr(args, option) != defaults[option]
    }


def _target(cls: type, conf: dict[str, Any]) -> dict[str, Any]:
    return {"_target_": f"{cls.__module__}.{cls.__qualname__}", **conf}


def _scheduler(args: argparse.Namespace) -> dict[str, Any]:
    if args.scheduler is None:
        constant = _target(torch.optim.lr_scheduler.ConstantLR, {"factor": 1.0})
        return {"scheduler": constant}
    cls = scheduler_classes[args.scheduler]
    config = {"scheduler": _target(cls, args.scheduler_conf)}
    if issubclass(cls, torch.optim.lr_scheduler.ReduceLROnPlateau):
        config["scheduler_monitor"] = "/".join(args.val_scheduler_criterion)
    if "scheduler_monitor" in config or issubclass(cls, AbsEpochStepScheduler):
        config["scheduler_interval"] = "epoch"
    return config


def _batches(
    args: argparse.Namespace, batch_type: str, batch_size: int, batch_bins: int
) -> dict[str, Any]:
    return {
        "type": batch_type,
        "batch_size": batch_size,
        "batch_bins": batch_bins,
        "sort_in_batch": args.sort_in_batch,
        "sort_batch": args.sort_batch,
        "drop_last": args.drop_last_iter,
        "min_batch_size": args.min_batch_size,
        "fold_lengths": args.fold_length,
    }
