"""Train and score a recognizer on LibriSpeech, or on anything in its layout.

The model and its training come from an ESPnet2 config, the rest of the options from
the command line. Every option of ``espnet2.bin.asr_train`` is accepted too and goes
before the config: ``--max_epoch 20 --encoder_conf num_blocks=12``.

    python run.py                                          # synthetic, Fastformer
    python run.py --encoder aft --encoder_conf aft_type=conv
    python run.py --corpus mini
    python run.py --corpus /data/LibriSpeech --train_subsets train-clean-100 \
        --valid_subsets dev-clean dev-other --test_subsets test-clean test-other \
        --asr_config ../../conf/train_asr_fastformer.yaml --token_type bpe --nbpe 5000

A run that was stopped goes on where it was when the same command is given again.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from espnet2.utils.nested_dict_action import NestedDictAction
from espnet3.components.data.dataset_module import load_dataset_module
from espnet3.utils.config_utils import load_and_merge_config
from espnet3.utils.logging_utils import configure_logging
from espnet3.utils.stages_utils import run_stages
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

RECIPE_DIR = Path(__file__).absolute().parent
CONF_DIR = Path(__file__).resolve().parents[2] / "conf"
sys.path.insert(0, str(RECIPE_DIR))

from src import espnet2_config  # noqa: E402
from src.system import LibriSpeechSystem  # noqa: E402

STAGES = (
    "create_dataset",
    "train_tokenizer",
    "collect_stats",
    "train",
    "infer",
    "measure",
    "pack_model",
)
# Options that let a training go on rather than make another one of it.
CONTINUING = re.compile(r"--(max_epoch|num_workers|log_interval)[= ]\S+ ?")


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of what ESPnet2's own parser does not know."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=STAGES,
        default=STAGES,
        metavar="STAGE",
        help=f"stages to run, of {', '.join(STAGES)} (default: all)",
    )

    group = parser.add_argument_group("model")
    config = group.add_mutually_exclusive_group()
    config.add_argument(
        "--encoder",
        choices=("fastformer", "aft"),
        default="fastformer",
        help="train conf/train_asr_ENCODER_small.yaml (default: fastformer)",
    )
    config.add_argument(
        "--asr_config", type=Path, help="train this config of ESPnet2 instead"
    )
    group.add_argument(
        "--token_type", choices=("char", "bpe"), default="char", help="default: char"
    )
    group.add_argument(
        "--nbpe",
        type=int,
        default=1000,
        help="number of tokens with --token_type bpe (default: 1000)",
    )
    group.add_argument(
        "--inference_config",
        type=Path,
        help="ESPnet2 decoding config (default: conf/decode_asr.yaml, or decode_ctc "
        "and decode_transducer for a model that needs it)",
    )

    group = parser.add_argument_group("corpus")
    group.add_argument(
        "--corpus",
        default="synthetic",
        help="synthetic (made here), mini (downloaded), or the path of a corpus in "
        "LibriSpeech's layout (default: synthetic)",
    )
    group.add_argument(
        "--corpus_conf",
        action=NestedDictAction,
        default={},
        metavar="KEY=VALUE",
        help="options of a corpus that is made here, such as train_hours=5",
    )
    for name in ("train", "valid", "test"):
        group.add_argument(
            f"--{name}_subsets",
            nargs="+",
            metavar="SUBSET",
            help=f"subsets to {'validate' if name == 'valid' else name} on",
        )
    group.add_argument(
        "--skip_broken_utterances",
        action="store_true",
        help="use what is whole of a corpus that has something wrong",
    )
    group.add_argument(
        "--speed_perturb_factors",
        nargs="+",
        type=float,
        metavar="FACTOR",
        help="train on speech at these speeds, drawn each time, such as 0.9 1.0 1.1",
    )

    group = parser.add_argument_group("machine and directories")
    group.add_argument(
        "--ngpu",
        type=int,
        help="GPUs a node (default: one if there is one, else the CPU)",
    )
    group.add_argument("--num_nodes", type=int, default=1, help="default: 1")
    group.add_argument(
        "--max_hours", type=float, help="stop training after this time, however far"
    )
    group.add_argument(
        "--exp_tag", help="name of the experiment (default: from the other options)"
    )
    group.add_argument("--exp_dir", type=Path, help="default: exp/EXP_TAG")
    group.add_argument(
        "--data_dir",
        type=Path,
        default=RECIPE_DIR / "data",
        help="what is prepared of the corpora (default: data)",
    )
    group.add_argument(
        "--download_dir",
        type=Path,
        default=RECIPE_DIR / "downloads",
        help="corpora made or downloaded here (default: downloads)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages that the command line asks for."""
    parser = get_parser()
    options, overrides = parser.parse_known_args(argv)
    if options.asr_config is None:
        options.asr_config = CONF_DIR / f"train_asr_{options.encoder}_small.yaml"
    try:
        args = espnet2_config.parse_asr_config(
            options.asr_config, [*overrides, "--token_type", options.token_type]
        )
        corpus = _corpus(options)
    except ValueError as error:
        parser.error(str(error))
    if options.inference_config is None:
        options.inference_config = CONF_DIR / f"decode_{_default_search(args)}.yaml"
    if options.exp_tag is None:
        options.exp_tag = _exp_tag(options, corpus["name"], overrides)

    configs = _configs(options, args, corpus)
    exp_dir = Path(configs["training"].exp_dir)
    stages = list(options.stages)
    if rank_zero_only.rank == 0:
        exp_dir.mkdir(parents=True, exist_ok=True)
        command = shlex.join([sys.executable, *(sys.argv if argv is None else argv)])
        with (exp_dir / "commands.txt").open("a", encoding="utf-8") as file:
            file.write(f"{command}\n")
    else:
        # Lightning starts this command once more for every other GPU.
        stages = [stage for stage in stages if stage == "train"]

    _quieten_console()
    system = LibriSpeechSystem(
        **{
            f"{role}_config": _complete(role, config, exp_dir / "conf")
            for role, config in configs.items()
        }
    )
    run_stages(system=system, stages_to_run=stages, log=configure_logging())


def _complete(role: str, config: DictConfig, directory: Path) -> DictConfig:
    """Put a config on the recipe's and that on ESPnet3's, and keep it in a file."""
    name = Path(config.inference_dir).name if role == "inference" else role
    path = directory / f"{name}.yaml"
    recipe_config = OmegaConf.load(RECIPE_DIR / "conf" / f"{role}.yaml")
    _write(OmegaConf.to_yaml(OmegaConf.merge(recipe_config, config)), path)
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


def _corpus(options: argparse.Namespace) -> dict[str, Any]:
    """Say where the corpus is, what it is called and which subsets of it to use."""
    made_here = load_dataset_module(recipe_dir=RECIPE_DIR).CORPORA
    subsets = {
        name: getattr(options, f"{name}_subsets") for name in ("train", "valid", "test")
    }
    if options.corpus in made_here:
        corpus = options.corpus
        name = corpus
        source_dir = options.download_dir.absolute() / corpus
        for role, default in made_here[corpus].splits.items():
            subsets[role] = subsets[role] or default
    else:
        corpus = None
        source_dir = Path(options.corpus).expanduser().absolute()
        if not source_dir.is_dir():
            known = ", ".join(made_here)
            raise ValueError(
                f"--corpus {options.corpus}: no such directory, and not one of {known}"
            )
        missing = [f"--{role}_subsets" for role in subsets if not subsets[role]]
        if missing:
            raise ValueError(f"--corpus {options.corpus} needs {', '.join(missing)}")
        # Two corpora may have one name, and one corpus several sets to train on.
        identity = repr((str(source_dir), subsets["train"], subsets["valid"]))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:6]
        name = f"{source_dir.name.lower()}-{digest}"
    return {
        "name": name,
        "corpus": corpus,
        "source_dir": str(source_dir),
        "data_dir": str(options.data_dir.absolute() / name),
        "subsets": subsets,
    }


def _default_search(args: argparse.Namespace) -> str:
    if args.decoder == "transducer":
        return "transducer"
    if args.decoder is None or args.model_conf.get("ctc_weight") == 1.0:
        return "ctc"
    return "asr"


def _exp_tag(options: argparse.Namespace, corpus: str, overrides: Sequence[str]) -> str:
    """Name the experiment as asr.sh does, after all that makes it what it is."""
    tag = f"{options.asr_config.stem}_{corpus}_{options.token_type}"
    if options.token_type == "bpe":
        tag += str(options.nbpe)
    changes = CONTINUING.sub("", " ".join(overrides)).replace("--", "_")
    tag += re.sub(r"[^\w.,-]", "", changes)
    if options.speed_perturb_factors:
        tag += "_sp"
    return tag


def _configs(
    options: argparse.Namespace, args: argparse.Namespace, corpus: dict[str, Any]
) -> dict[str, DictConfig]:
    """Fill in what the recipe's ESPnet3 configs leave open, by role."""
    exp_dir = (options.exp_dir or RECIPE_DIR / "exp" / options.exp_tag).absolute()
    data_dir = corpus["data_dir"]
    ngpu = torch.cuda.device_count() and 1 if options.ngpu is None else options.ngpu
    tokens = options.token_type
    if tokens == "bpe":
        tokens += str(options.nbpe)
    directories = {
        "recipe_dir": str(RECIPE_DIR),
        "data_dir": data_dir,
        "exp_tag": options.exp_tag,
        "exp_dir": str(exp_dir),
    }
    decoded = {"inference_dir": str(exp_dir / options.inference_config.stem)}
    tokenizer_dir = f"{data_dir}/token_list/{tokens}"
    stats_dir = f"{data_dir}/stats_{tokens}"

    def datasets(role: str, **extra) -> list[dict[str, Any]]:
        return [
            {
                "name": subset,
                "data_src_args": {
                    "split": subset,
                    "source_dir": corpus["source_dir"],
                    "data_dir": data_dir,
                    **extra,
                },
            }
            for subset in corpus["subsets"][role]
        ]

    training = OmegaConf.merge(
        espnet2_config.training_config(args, ngpu > 0),
        {
            **directories,
            "stats_dir": stats_dir,
            "num_device": ngpu or 1,
            "num_nodes": options.num_nodes,
            "create_dataset": {
                "source_dir": corpus["source_dir"],
                "data_dir": data_dir,
                "splits": sorted({s for ss in corpus["subsets"].values() for s in ss}),
                "corpus": corpus["corpus"],
                "corpus_conf": options.corpus_conf,
                "skip_broken_utterances": options.skip_broken_utterances,
            },
            "dataset": {"train": datasets("train"), "valid": datasets("valid")},
            "tokenizer": {
                "model_type": options.token_type,
                "vocab_size": options.nbpe,
                "save_path": tokenizer_dir,
                "train_file": f"{tokenizer_dir}/train.txt",
                "text_builder": {"splits": corpus["subsets"]["train"]},
            },
            "trainer": {"accelerator": "gpu" if ngpu else "cpu"},
        },
    )
    preprocessor = training.dataset.preprocessor
    preprocessor.token_type = options.token_type
    if options.token_type == "bpe":
        preprocessor.bpemodel = f"{tokenizer_dir}/bpe.model"
    if options.speed_perturb_factors:
        preprocessor.update(_speed_perturbation(options.speed_perturb_factors))
    if training.model.get("normalize") == "global_mvn":
        stats = {"stats_file": f"{stats_dir}/train/feats_stats.npz"}
        training.model.normalize_conf = {
            **stats,
            **training.model.get("normalize_conf", {}),
        }
    if options.max_hours:
        limit = int(3600 * options.max_hours)
        minutes, seconds = divmod(limit, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        training.trainer.max_time = f"{days:02}:{hours:02}:{minutes:02}:{seconds:02}"

    monitor = training.best_model_criterion[0][0].replace("/", ".")
    inference = OmegaConf.merge(
        espnet2_config.inference_config(options.inference_config),
        {
            **directories,
            **decoded,
            "dataset": {"test": datasets("test", with_utt_id=True)},
            "model": {"asr_model_file": f"{exp_dir}/{monitor}.ave.pth"},
        },
    )
    if not ngpu:
        inference.device = "cpu"
    metrics = {
        **directories,
        **decoded,
        "dataset": {"test": [{"name": name} for name in corpus["subsets"]["test"]]},
    }
    bundled = {
        "stats": f"{stats_dir}/train/feats_stats.npz",
        "tokens": f"{tokenizer_dir}/tokens.txt",
    }
    if options.token_type == "bpe":
        bundled["bpemodel"] = preprocessor.bpemodel
    publication = {**directories, **decoded, "pack_model": {"files": bundled}}
    return {
        "training": training,
        "inference": inference,
        "metrics": OmegaConf.create(metrics),
        "publication": OmegaConf.create(publication),
    }


def _speed_perturbation(factors: Sequence[float]) -> dict[str, Any]:
    changed = [factor for factor in factors if factor != 1.0]
    return {
        "data_aug_effects": [
            [1.0, "speed_perturb", {"factor": factor}] for factor in changed
        ],
        "data_aug_prob": len(changed) / len(factors),
    }


def _quieten_console() -> None:
    """Leave the progress in sight; ESPnet3 logs everything to files as well."""

    def is_progress(record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO:
            return record.name != "py.warnings"
        return record.getMessage().startswith(("=== [", "epoch_summary"))

    console = logging.StreamHandler()
    console.addFilter(is_progress)
    logging.basicConfig(
        format="%(asctime)s %(message)s", handlers=[console], force=True
    )


def _write(text: str, path: Path) -> None:
    """Replace a file at once: other ranks read and write it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{rank_zero_only.rank}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
