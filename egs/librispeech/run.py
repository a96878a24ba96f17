r"""Train and score a recognizer on LibriSpeech, or on anything in its layout.

ESPnet3's own command takes a config of ESPnet3 for each stage. Here, the model and its
training come from an ESPnet2 config, the rest of the options from the command line.
Every option of ``espnet2.bin.asr_train`` is accepted too and goes before the config:
``--max_epoch 20 --encoder_conf num_blocks=12``.

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
import contextlib
import io
import os
import shlex
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from espnet2.utils.nested_dict_action import NestedDictAction

RECIPE_DIR = Path(__file__).absolute().parent
CONF_DIR = Path(__file__).resolve().parents[2] / "conf"
sys.path.insert(0, str(RECIPE_DIR))

import interruption  # noqa: E402

STAGES = (
    "create_dataset",
    "train_tokenizer",
    "collect_stats",
    "train",
    "infer",
    "measure",
    "pack_model",
)


# Variables by which launchers tell a process its rank, and how many there are.
LAUNCHERS = {
    "RANK": "WORLD_SIZE",
    "LOCAL_RANK": "WORLD_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
    "JSM_NAMESPACE_RANK": "JSM_NAMESPACE_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
}


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
        help="train conf/train_asr_ctc_ENCODER_small.yaml (default: fastformer)",
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
        help="synthetic (made here), mini or small (downloaded), or the path of one in "
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
            type=os.path.normpath,
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
    group.add_argument(
        "--nj",
        type=int,
        default=1,
        help="processes of collect_stats, and files that create_dataset decodes at the "
        "same time if more than 16 (default: 1)",
    )
    group.add_argument(
        "--nproc",
        type=int,
        default=1,
        help="processes a node that train on the CPU together, each on its share of "
        "every batch (default: 1)",
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


def check_launcher(
    options: argparse.Namespace, environ: MutableMapping[str, str]
) -> None:
    """Make the ranks in the environment those of the processes that are asked for.

    One process has none: what is there is left over, or of other runs of `srun -n4`.

    Args:
        options: Options of run.py.
        environ: Environment, from which those ranks are removed.

    Raises:
        ValueError: The number of processes is another one than that of the options.
    """
    number = (options.ngpu or options.nproc) * options.num_nodes
    torchrun = "TORCHELASTIC_RUN_ID" in environ
    if number == 1 and not torchrun:
        for name in {*LAUNCHERS, *LAUNCHERS.values()}:
            environ.pop(name, None)
    for rank, size in LAUNCHERS.items():
        is_one_of_many = environ.get(rank, "0") != "0" or (torchrun and rank == "RANK")
        if is_one_of_many and environ.get(size) != str(number):
            raise ValueError(
                f"{rank}={environ.get(rank)}, {size}={environ.get(size)} in the "
                "environment: this is one of several processes, but --ngpu (or --nproc "
                f"on a CPU) times --num_nodes is {number}. Give the numbers of those "
                "that train together, or unset the variables"
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages that the command line asks for."""
    parser = get_parser()
    options, overrides = parser.parse_known_args(argv)
    if options.asr_config is None:
        options.asr_config = CONF_DIR / f"train_asr_ctc_{options.encoder}_small.yaml"
    try:
        check_launcher(options, os.environ)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")

    # PyTorch and ESPnet take many seconds to import: not for --help or a wrong option.
    with contextlib.redirect_stderr(io.StringIO()):
        # Prints that it has failed to import what it can do without.
        import espnet2.legacy.nets.pytorch_backend.transformer.attention  # noqa: F401
    from espnet3.utils.logging_utils import configure_logging
    from espnet3.utils.stages_utils import run_stages
    from lightning.pytorch.utilities import rank_zero_only
    from src import report
    from src.check_options import check_asr_options, check_run_options
    from src.configs import make_configs
    from src.console import explain, set_up_console
    from src.espnet2_config import default_search, parse_asr_config
    from src.system import LibriSpeechSystem

    try:
        args = parse_asr_config(
            options.asr_config, [*overrides, "--token_type", options.token_type]
        )
        check_run_options(options)
        least_samples = check_asr_options(args, options.asr_config)
        if options.inference_config is None:
            options.inference_config = CONF_DIR / f"decode_{default_search(args)}.yaml"
        configs = make_configs(options, args, overrides, least_samples, RECIPE_DIR)
    except (OSError, ValueError) as error:
        # Of a value: how options are given, which error() shows, does not matter.
        parser.exit(2, f"{parser.prog}: error: {error}\n")

    set_up_console(is_first=rank_zero_only.rank == 0)
    stages = [stage for stage in STAGES if stage in options.stages]
    exp_dir = Path(configs["training"].exp_dir)
    try:
        if rank_zero_only.rank == 0:
            command = [sys.executable, *(sys.argv if argv is None else argv)]
            report.command = shlex.join(command)
        else:
            # Lightning starts this command once more for every other GPU.
            stages = [stage for stage in stages if stage == "train"]
            interruption.where = ""
        system = LibriSpeechSystem(
            **{f"{role}_config": config for role, config in configs.items()}
        )
        log = configure_logging()
        for stage in stages:
            if rank_zero_only.rank == 0:
                interruption.where = f"in the stage {stage}"
            run_stages(system=system, stages_to_run=[stage], log=log)
        report.record_command(exp_dir)
        if "measure" in stages:
            print(
                report.summarize(
                    exp_dir, has_ctc=args.model_conf.get("ctc_weight") != 0.0
                )
            )
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        sys.exit(f"{parser.prog}: {message}")


if __name__ == "__main__":
    interruption.end_at_ctrl_c()
    main()
