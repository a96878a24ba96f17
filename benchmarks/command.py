"""The options that the commands share, and the loop over lengths."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.measure import DTYPES, MODES, Case, Settings, available_memory, sweep
from benchmarks.results import COLUMNS, Report, cells, describe_machine, table

RESULTS_DIR = Path(__file__).parent / "results"


def new_parser(description: str, name: str) -> argparse.ArgumentParser:
    """Return a parser of what all commands need.

    Args:
        description: Docstring of the command.
        name: Its name, and that of the files it writes.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS_DIR / name,
        help=f"write OUTPUT.json and OUTPUT.md (default: benchmarks/results/{name})",
    )
    return parser


def get_parser(description: str, name: str) -> argparse.ArgumentParser:
    """Return a parser of the options about measuring; see :func:`new_parser`."""
    parser = new_parser(description, name)
    defaults = Settings()
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="default: cuda if there is a GPU, else cpu",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=defaults.threads,
        help=f"threads on a CPU (default: {defaults.threads})",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=defaults.rounds,
        help="samples of each competitor; fewer where they take long (default: "
        f"{defaults.rounds}, or the command's own)",
    )
    parser.add_argument(
        "--time_limit",
        type=float,
        default=defaults.time_limit,
        metavar="SECONDS",
        help="leave out a competitor once a call takes longer "
        f"(default: {defaults.time_limit:g})",
    )
    parser.add_argument(
        "--memory_limit",
        type=float,
        metavar="GB",
        help="leave out a competitor once it needs more main memory (default: nine "
        "tenths of what is free at the start)",
    )
    return parser


def add_sweep_options(
    parser: argparse.ArgumentParser, competitors: Sequence[str], lengths: Sequence[int]
) -> None:
    """Add the options about what is measured.

    Args:
        parser: From :func:`get_parser`.
        competitors: Names to choose from.
        lengths: Default seconds of audio.
    """
    parser.add_argument(
        "--competitors",
        nargs="+",
        choices=competitors,
        default=competitors,
        metavar="NAME",
        help=f"of {', '.join(competitors)} (default: all)",
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=float,
        default=lengths,
        metavar="SECONDS",
        help=f"seconds of audio (default: {' '.join(map(str, lengths))})",
    )
    parser.add_argument(
        "--batch_size", type=int, default=1, help="utterances of that length, default 1"
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)


def settings_of(options: argparse.Namespace, **others) -> Settings:
    """Return the settings that the command line asks for.

    Raises:
        SystemExit: If it asks for a GPU and there is none.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "This needs a GPU, and torch finds none: torch.cuda.is_available() is "
            "False. --device cpu measures the processor."
        )
    if options.memory_limit is not None:
        memory_limit = int(1e9 * options.memory_limit)
    elif (available := available_memory()) is not None:
        memory_limit = int(0.9 * available)
    else:
        memory_limit = None
    return Settings(
        device=options.device,
        threads=options.threads,
        rounds=options.rounds,
        time_limit=options.time_limit,
        memory_limit=memory_limit,
        **others,
    )


def run_sweep(
    title: str, options: argparse.Namespace, case: Callable[..., Case]
) -> None:
    """Measure every competitor at every length, and print and write the table.

    Args:
        title: Heading of the table.
        options: Of a parser with the options of both functions above.
        case: Called as ``case(name, audio, batch, mode, dtype)``.
    """
    settings = settings_of(options)
    report = Report(title, describe_machine(settings))
    points = [
        [
            case(name, audio, options.batch_size, mode, dtype)
            for name in options.competitors
        ]
        for mode in options.modes
        for dtype in options.dtypes
        for audio in sorted(options.lengths)
    ]

    def record(results):
        report.results += results
        report.save(options.output)
        print(table_rows(results), flush=True)

    def table_rows(results):
        return "\n".join(f"| {' | '.join(cells(result))} |" for result in results)

    print(table(("what", *COLUMNS), []), flush=True)
    sweep(points, settings, record)
