r"""Train and score many encoders under equal conditions, and compare them.

    python -m benchmarks.study --corpus /data/LibriSpeech \
        --train_subsets train-clean-100 --valid_subsets dev-clean \
        --test_subsets test-clean test-other --rows comparison windows --seeds 0 1 \
        --jobs 2 --joined_seconds 30 120

The rows are those of study.yaml, or of --study. Every option of the recipe's run.py
about the corpus, the tokens and the machine is accepted too. A study that was stopped
goes on where it was when the same command is given again, and rows and seeds can be
added.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from . import RECIPE_DIR, interruption, run

DIRECTORY = Path(__file__).parent
STAGES = ("speed", "train", "joined", "report")
# Options of run.py that a study sets itself.
OWN_OPTIONS = ("asr_config", "encoder", "exp_tag", "max_hours")


def get_part_parser() -> argparse.ArgumentParser:
    """Return the parser of what parts of one study differ in."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ROW",
        help="names of rows, or of groups of them (default: the first group)",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="default: 0"
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=STAGES,
        default=STAGES,
        metavar="STAGE",
        help=f"of {', '.join(STAGES)} (default: all). The sizes of the models are "
        "checked and shown in any case",
    )
    return parser


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of what run.py's own parser does not know."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        parents=[get_part_parser()],
    )
    parser.add_argument(
        "--study",
        type=Path,
        default=DIRECTORY / "study.yaml",
        help="rows and what they have in common (default: benchmarks/study/study.yaml)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="trainings at the same time, which share out the threads (default: 1)",
    )
    parser.add_argument(
        "--joined_seconds",
        nargs="+",
        type=float,
        default=[],
        metavar="SECONDS",
        help="decode the test subsets joined to recordings of this length too",
    )
    parser.add_argument(
        "--pooling_windows",
        nargs="+",
        type=float,
        default=[],
        metavar="SECONDS",
        help="decode the joined recordings once more with encoders that see windows of "
        "this length, as of espnet-fastformer transcribe --pooling_window",
    )
    parser.add_argument(
        "--inference_config",
        type=Path,
        default=run.CONF_DIR / "decode_ctc.yaml",
        help="decoding config, as of run.py (default: conf/decode_ctc.yaml)",
    )
    parser.add_argument(
        "--joined_inference_config",
        type=Path,
        default=DIRECTORY / "decode_best_path.yaml",
        help="the same for joined recordings, and for the utterances that they are "
        "compared with (default: benchmarks/study/decode_best_path.yaml, which long "
        "recordings are not too long for)",
    )
    parser.add_argument(
        "--exp_dir",
        type=Path,
        default=RECIPE_DIR / "exp" / "study",
        help="where everything is kept (default: egs/librispeech/exp/study)",
    )
    parser.add_argument(
        "--against",
        metavar="ROW",
        help="row that the tables compare the others with (default: the reference)",
    )
    parser.add_argument(
        "--page",
        type=Path,
        help="Markdown file whose part between two marks is written, such as "
        "docs/accuracy.md (default: EXP_DIR/RESULTS.md)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages that the command line asks for."""
    argv = sys.argv[1:] if argv is None else argv
    parser = get_parser()
    options, recipe_command = parser.parse_known_args(argv)
    _, shared = get_part_parser().parse_known_args(argv)
    recipe_parser = run.get_parser()
    recipe, unknown = recipe_parser.parse_known_args(recipe_command)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    for name in OWN_OPTIONS:
        if getattr(recipe, name) != recipe_parser.get_default(name):
            parser.error(f"--{name} is what {options.study} is for")
    # PyTorch and ESPnet take many seconds to import: not for --help or a wrong option.
    from .jobs import StillRunningError
    from .runner import Runner, StudyError, describe_command

    # Whoever ends this command ends the trainings with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        runner = Runner(options, recipe, recipe_command, shared)
        runner.check()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    with (runner.exp_dir / "commands.txt").open("a", encoding="utf-8") as file:
        file.write(f"{describe_command(argv)}\n")
    try:
        if {"speed", "train"} & set(options.stages):
            runner.prepare()
        for stage in STAGES:
            if stage in options.stages:
                interruption.where = f"in the stage {stage}"
                getattr(runner, stage)()
    except (OSError, StillRunningError, StudyError) as error:
        raise SystemExit(f"{parser.prog}: {error}") from error


if __name__ == "__main__":
    interruption.end_at_ctrl_c()
    main()
