"""The ESPnet3 configs that the stages run with.

ESPnet3 reads one config a stage; these are made of a command line and ESPnet2's files.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

import torch
from espnet3.components.data.dataset_module import load_dataset_module
from espnet3.utils.config_utils import load_and_merge_config
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from typeguard import TypeCheckError

from .check_options import check_device
from .espnet2_config import convert_inference, convert_training
from .lock import lock

SUBSETS = ("train", "valid", "test")
# ESPnet's usual speeds, which asr.sh calls by no more than this.
USUAL_SPEEDS = [0.9, 1.0, 1.1]
# Options that let a training go on rather than make another one of it.
CONTINUING = re.compile(r"--(max_epoch|num_workers|log_interval|num_att_plot)[= ]\S+ ?")
# Sections of a training config, and options of Lightning, that make it what it is...
LASTING = (
    *("best_model_criterion", "dataloader", "dataset", "init_param", "model"),
    *("optimizer", "scheduler", "scheduler_interval", "scheduler_monitor", "seed"),
)
LASTING_OF_TRAINER = ("accumulate_grad_batches", "gradient_clip_val")
# ... but for what they hold about places and machines.
PASSING = ("data_dir", "num_workers", "recipe_dir", "source_dir")

# File systems allow 255 bytes for a name, and those of packed models end in .zip.
LONGEST_NAME = 251
LONGEST_TAG = 240
# What OmegaConf takes for a reference, and what is no text of one line in UTF-8.
UNFIT_FOR_CONFIGS = re.compile(r"\$\{|[\n\r\ud800-\udfff]")
# An experiment has these beside its decodings, or in its conf/.
NO_DECODINGS = (
    *("att_ws", "conf", "metrics", "model_pack", "partial", "publication"),
    *("tensorboard", "training"),
)


def make_configs(
    options: argparse.Namespace,
    args: argparse.Namespace,
    overrides: Sequence[str],
    least_samples: int,
    recipe_dir: Path,
) -> dict[str, DictConfig]:
    """Make the config of every role.

    Args:
        options: Options of run.py.
        args: Those of ESPnet2.
        overrides: The latter as far as the command line gives them.
        least_samples: Samples that the encoder needs to give one frame.
        recipe_dir: Directory of run.py.

    Returns:
        The configs ``training``, ``inference``, ``metrics`` and ``publication``. They
        are also written to ``EXP_DIR/conf``.

    Raises:
        ValueError: The corpus is not there, or an option that it needs, or a name will
            not do, or another run is at work in the experiment.
        OSError: ``EXP_DIR/conf`` cannot be written.
    """
    corpus = _Corpus(options, recipe_dir)
    tokens = options.token_type
    if tokens == "bpe":
        tokens += str(options.nbpe)
    exp_tag = options.exp_tag or _exp_tag(options, corpus.name, tokens, overrides)
    exp_dir = (options.exp_dir or recipe_dir / "exp" / exp_tag).absolute()
    everywhere = {
        "recipe_dir": str(recipe_dir),
        "source_dir": str(corpus.source_dir),
        "data_dir": str(corpus.data_dir),
        "exp_tag": exp_tag,
        "exp_dir": str(exp_dir),
    }
    _check_names(everywhere, options.inference_config, args.init_param, corpus.subsets)
    decoded = {
        **everywhere,
        "inference_dir": str(exp_dir / options.inference_config.stem),
    }
    training = OmegaConf.merge(everywhere, _training(options, args, corpus, tokens))
    # Of those that ESPnet's effects make faster, there are fewer left.
    effects = OmegaConf.to_container(training.dataset.preprocessor)
    factors = [v for name, v in _flatten(effects) if name.endswith(".factor")]
    training.create_dataset.min_samples = ceil(least_samples * max([1.0, *factors]))
    monitor = training.best_model_criterion[0][0].replace("/", ".")
    search = convert_inference(options.inference_config)
    search["model"]["asr_model_file"] = str(exp_dir / f"{monitor}.ave.pth")
    test = corpus.datasets("test", with_utt_id=True)
    # ESPnet3 decodes on a GPU if it sees one.
    device = {} if training.trainer.accelerator == "gpu" else {"device": "cpu"}
    needed = {
        "asr_model_file": search["model"]["asr_model_file"],
        "stats": f"{training.stats_dir}/train/feats_stats.npz",
    }
    for name, file in {"tokens": "tokens.txt", "bpemodel": "bpe.model"}.items():
        if name == "tokens" or options.token_type == "bpe":
            needed[name] = f"{training.tokenizer.save_path}/{file}"
    configs = {
        "training": training,
        "inference": {**decoded, **device, **search, "dataset": {"test": test}},
        "metrics": {**decoded, "dataset": {"test": test}},
        "publication": {**decoded, "pack_model": {"files": needed}},
    }
    if rank_zero_only.rank == 0 and options.num_nodes == 1:
        lock(exp_dir)
    return {
        role: _complete(role, OmegaConf.create(config), options, exp_dir, recipe_dir)
        for role, config in configs.items()
    }


def lasting_settings(training: DictConfig) -> dict[str, Any]:
    """Return what must not change while a training goes on, by names with dots.

    Args:
        training: Config of the training.
    """
    config = OmegaConf.to_container(training, resolve=True)
    lasting = {section: config.get(section) for section in LASTING}
    trainer = {option: config["trainer"][option] for option in LASTING_OF_TRAINER}
    return dict(_flatten({**lasting, "trainer": trainer}))


def _check_names(
    everywhere: Mapping[str, str],
    inference_config: Path,
    init_param: Sequence[str],
    subsets: Mapping[str, Sequence[str]],
) -> None:
    names = [*everywhere.values(), str(inference_config), *init_param]
    for name in (*names, *(s for members in subsets.values() for s in members)):
        if unfit := UNFIT_FOR_CONFIGS.search(name):
            raise ValueError(
                f"{name!r}: ESPnet3's configs cannot hold a name with {unfit[0]!r} in "
                "it. Choose another"
            )
    name = Path(everywhere["exp_dir"]).name
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(
            f"--exp_tag or --exp_dir {name}: {len(name.encode())} bytes are too many, "
            f"give {LONGEST_NAME} at most"
        )
    if inference_config.stem in NO_DECODINGS:
        raise ValueError(
            f"--inference_config {inference_config}: transcripts would go to a "
            f"directory {inference_config.stem}, which is for something else. Rename it"
        )


class _Corpus:
    """Where the corpus is, what it is called and which subsets of it are used."""

    def __init__(self, options: argparse.Namespace, recipe_dir: Path) -> None:
        made_here = load_dataset_module(recipe_dir=recipe_dir).CORPORA
        given = {role: getattr(options, f"{role}_subsets") for role in SUBSETS}
        for role, subsets in given.items():
            if subsets and len(set(subsets)) < len(subsets):
                names = ", ".join(subsets)
                raise ValueError(f"--{role}_subsets names a subset twice: {names}")
            # Decodings are replaced by these names, which must not lead elsewhere.
            for subset in subsets or ():
                if os.sep in subset or subset in (".", ".."):
                    raise ValueError(
                        f"--{role}_subsets {subset}: give the name of a directory in "
                        "--corpus, not a path"
                    )
        self.conf = options.corpus_conf
        if options.corpus in made_here:
            self.made_here = options.corpus
            self.source_dir = options.download_dir.absolute() / options.corpus
            default = made_here[options.corpus].splits
            self.subsets = {role: given[role] or default[role] for role in SUBSETS}
            _check_conf(made_here[options.corpus], self.source_dir, self.conf)
        else:
            self.made_here = None
            self.source_dir = Path(os.path.expanduser(options.corpus)).absolute()
            default = None
            self.subsets = given
            self._check(options.corpus, made_here)
        self.name = _cut(self.source_dir.name.lower(), LONGEST_TAG)
        if self.subsets != default or self.conf:
            # Two corpora may have one name, and one corpus many sets to train on.
            identity = (str(self.source_dir), given["train"], given["valid"])
            self.name += "-" + digest((*identity, self.conf) if self.conf else identity)
        self.data_dir = options.data_dir.absolute() / self.name

    def _check(self, name: str, made_here: Sequence[str]) -> None:
        if not self.source_dir.is_dir():
            raise ValueError(
                f"--corpus {name}: no such directory, and not one of "
                f"{', '.join(made_here)}"
            )
        missing = [f"--{role}_subsets" for role in SUBSETS if not self.subsets[role]]
        if missing:
            raise ValueError(f"--corpus {name} needs {', '.join(missing)}")
        if self.conf:
            raise ValueError(f"--corpus_conf is not for a corpus of your own: {name}")

    def datasets(self, role: str, **args: Any) -> list[dict[str, Any]]:
        """Return what ESPnet3 makes the datasets of ``role`` from."""
        args |= {"source_dir": str(self.source_dir), "data_dir": str(self.data_dir)}
        return [
            {"name": subset, "data_src_args": {"split": subset, **args}}
            for subset in self.subsets[role]
        ]


def _check_conf(corpus: type, source_dir: Path, conf: dict[str, Any]) -> None:
    _, *known = inspect.signature(corpus).parameters
    unknown = conf.keys() - known
    if unknown:
        raise ValueError(
            f"--corpus_conf has no {', '.join(sorted(unknown))}, but {', '.join(known)}"
        )
    try:
        corpus(source_dir, **conf)
    except (TypeError, TypeCheckError, ValueError) as error:
        raise ValueError(f"--corpus_conf: {error}") from error


def _training(
    options: argparse.Namespace, args: argparse.Namespace, corpus: _Corpus, tokens: str
) -> DictConfig:
    ngpu = options.ngpu
    if ngpu is None:
        ngpu = min(1, torch.cuda.device_count())
    if ngpu and options.nproc > 1:
        raise ValueError("--nproc is for training on a CPU: give --ngpu 0 too")
    there = torch.cuda.device_count() or int(torch.backends.mps.is_available())
    if ngpu > there and "train" in options.stages:
        raise ValueError(
            f"--ngpu {ngpu}: PyTorch sees {there} GPUs here. Give --ngpu {there}"
        )
    if "train" in options.stages:
        check_device(args, options.asr_config, on_gpu=ngpu > 0)
    config = convert_training(args, on_gpu=ngpu > 0)
    dataset = {role: corpus.datasets(role) for role in ("train", "valid")}
    frontend = [
        config["model"].get(key) for key in ("frontend", "frontend_conf", "input_size")
    ]
    tokenizer_dir = corpus.data_dir / "token_list" / tokens
    # Neither the encoder nor its training changes what is counted here.
    stats = digest((dataset, corpus.conf, tokens, frontend))
    stats_dir = corpus.data_dir / f"stats_{tokens}_{stats}"

    if config["model"].get("normalize") == "global_mvn":
        file = {"stats_file": str(stats_dir / "train" / "feats_stats.npz")}
        conf = config["model"].get("normalize_conf", {})
        config["model"]["normalize_conf"] = {**file, **conf}
    preprocessor = {}
    if options.token_type == "bpe":
        preprocessor["bpemodel"] = str(tokenizer_dir / "bpe.model")
    if options.speed_perturb_factors:
        preprocessor |= _speed_perturbation(options.speed_perturb_factors)
    trainer = {"accelerator": "gpu" if ngpu else "cpu"}
    num_device = ngpu or options.nproc
    if num_device * options.num_nodes == 1:
        trainer["strategy"] = "auto"
    if options.max_hours:
        trainer["max_time"] = _days_to_seconds(options.max_hours)
    return OmegaConf.merge(
        config,
        {
            "stats_dir": str(stats_dir),
            "num_device": num_device,
            "num_nodes": options.num_nodes,
            "create_dataset": {
                "splits": sorted({s for role in SUBSETS for s in corpus.subsets[role]}),
                "corpus": corpus.made_here,
                "corpus_conf": corpus.conf,
                "skip_broken_utterances": options.skip_broken_utterances,
                "nj": options.nj,
            },
            "dataset": {**dataset, "preprocessor": preprocessor},
            "tokenizer": {
                "model_type": options.token_type,
                "vocab_size": options.nbpe,
                "save_path": str(tokenizer_dir),
            },
            "parallel": {"n_workers": options.nj},
            "trainer": trainer,
        },
    )


def _exp_tag(
    options: argparse.Namespace, corpus: str, tokens: str, overrides: Sequence[str]
) -> str:
    """Name the experiment as asr.sh does, after all that makes it what it is."""
    changes = CONTINUING.sub("", " ".join(overrides)).replace("--", "_")
    changes = re.sub(r"[^\w.,-]", "", changes)
    factors = sorted(options.speed_perturb_factors or ())
    perturbed = "_sp" if factors else ""
    if factors != USUAL_SPEEDS:
        perturbed += "_".join(map(str, factors))
    tag = f"{options.asr_config.stem}_{corpus}_{tokens}"
    if len(f"{tag}{changes}{perturbed}".encode()) > LONGEST_TAG:
        changes = f"_{digest(changes)}"
        tag = _cut(tag, LONGEST_TAG - len(f"{changes}{perturbed}"))
    return f"{tag}{changes}{perturbed}"


def _cut(name: str, length: int) -> str:
    """Return as much of a name as fits into so many bytes."""
    return name.encode()[:length].decode(errors="ignore")


def _speed_perturbation(factors: Sequence[float]) -> dict[str, Any]:
    changed = [factor for factor in factors if factor != 1.0]
    return {
        "data_aug_effects": [
            [1.0, "speed_perturb", {"factor": factor}] for factor in changed
        ],
        "data_aug_prob": len(changed) / len(factors),
    }


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a nested config holds, of paths the last part alone."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, member in value.items():
            if key not in PASSING:
                yield from _flatten(member, f"{name}.{key}" if name else str(key))
    else:
        yield name, value.rpartition("/")[2] if isinstance(value, str) else value


def _days_to_seconds(hours: float) -> str:
    """Write a time as Lightning reads it: DD:HH:MM:SS."""
    time = timedelta(hours=hours)
    minutes, seconds = divmod(time.seconds, 60)
    return f"{time.days:02}:{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def digest(value: Any) -> str:
    """Return a short text that differs where the value does."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:6]


def _complete(
    role: str,
    config: DictConfig,
    options: argparse.Namespace,
    exp_dir: Path,
    recipe_dir: Path,
) -> DictConfig:
    """Lay a config over the recipe's and that over ESPnet3's default."""
    name = options.inference_config.stem if role == "inference" else role
    path = exp_dir / "conf" / f"{name}.yaml"
    recipe_config = OmegaConf.load(recipe_dir / "conf" / f"{role}.yaml")
    write_at_once(OmegaConf.to_yaml(OmegaConf.merge(recipe_config, config)), path)
    complete = load_and_merge_config(
        path,
        config_name=f"{role}.yaml",
        default_package="egs3.TEMPLATE.esp2_asr",
        resolve=False,
    )
    if role == "training":
        # Options of ESPnet3's default ones would be left in them by a merge.
        complete.optimizer = config.optimizer
        complete.scheduler = config.scheduler
    OmegaConf.resolve(complete)
    return complete


def write_at_once(text: str, path: Path) -> None:
    """Replace a file at once: other ranks read and write it at the same time."""
    partial = path.with_suffix(f".{rank_zero_only.rank}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        # A full disk has no name in Python's own message.
        raise OSError(error.errno, error.strerror, str(path)) from error
