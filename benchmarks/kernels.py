"""Kernels and bytes of encoders on a GPU, counted on a simulated one.

A training step without optimiser, 16 utterances of 15 seconds in float32: all as long
as that, and with padding. From the counts follows the least time that a card's
published peaks allow: the greatest of 5 µs a kernel, of the bytes through its memory
and of the floating-point operations, all as if nothing else limited it. No GPU is used,
and the numbers are not times of one.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from benchmarks.command import get_parser, settings_of
from benchmarks.encoders import (
    ENCODERS,
    FEATURES,
    FRAMES_PER_SECOND,
    SHARED,
    build_encoder,
)
from benchmarks.results import Report, describe_machine, duration, number, size, table
from tests.simulated_device import Counts, available, count

# What kernels and bytes are compared with.
FAST_SELFATTN = "e_branchformer-fast_selfattn"
REL_SELFATTN = "e_branchformer-rel_selfattn"
COMPETITORS = (
    REL_SELFATTN,
    "e_branchformer-rel_selfattn-sdpa",
    FAST_SELFATTN,
    "fastformer",
    "aft-full",
    "aft-local",
    "aft-simple",
    "aft-conv",
)
# Shares of the longest of a batch.
BATCHES = {"full": (1.0, 1.0), "padded": (0.6, 1.0)}
LAUNCH = 5e-6


class Card(NamedTuple):
    """Published peaks of a card: bytes a second, and float32 operations a second."""

    memory: float
    compute: float

    def seconds(self, counts: Counts) -> float:
        """Return the least time that the peaks allow."""
        return max(
            LAUNCH * counts.kernels.total(),
            (counts.bytes_read + counts.bytes_written) / self.memory,
            counts.flops / self.compute,
        )


CARDS = {
    "A100": Card(2.039e12, 19.5e12),
    "H100": Card(3.35e12, 66.9e12),
    "RTX 4090": Card(1.008e12, 82.6e12),
}
COLUMNS = (
    "encoder",
    "batch",
    "pass",
    "waits",
    "kernels",
    f"of {FAST_SELFATTN}",
    "memory traffic",
    f"of {REL_SELFATTN}",
    "GFLOP",
    *CARDS,
)


def count_step(
    name: str, lengths: torch.Tensor, num_blocks: int
) -> Iterator[tuple[str, Counts]]:
    """Yield what forward and backward of an encoder cost.

    Args:
        name: One of :data:`ENCODERS`.
        lengths: Frames of features of each utterance (B,).
        num_blocks: Blocks of the encoder.
    """
    torch.manual_seed(0)
    with available() as device:
        encoder = build_encoder(name, num_blocks=num_blocks).to(device).train()
        feats = torch.randn(len(lengths), int(lengths.max()), FEATURES).to(device)
        lengths = lengths.to(device)
        with count() as counts:
            out = encoder(feats, lengths)[0]
        yield "forward", counts
        grad = torch.ones_like(out)
        with count() as counts:
            out.backward(grad)
        yield "backward", counts


def rows(options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield cells under :data:`COLUMNS`, ESPnet's encoders first."""
    for batch, (least, most) in BATCHES.items():
        frames = FRAMES_PER_SECOND * options.seconds
        shares = torch.linspace(most, least, options.batch_size)
        lengths = (frames * shares).round().long()
        measured = {}
        for name in dict.fromkeys((FAST_SELFATTN, REL_SELFATTN, *options.competitors)):
            measured[name] = dict(count_step(name, lengths, options.num_blocks))
            if name == FAST_SELFATTN:
                continue
            new = (REL_SELFATTN, FAST_SELFATTN) if name == REL_SELFATTN else (name,)
            for shown in new:
                for part in measured[shown]:
                    yield row(shown, batch, part, measured)


def row(
    name: str, batch: str, part: str, measured: Mapping[str, Mapping[str, Counts]]
) -> list[str]:
    """Return the cells of an encoder's pass, against those of ESPnet's."""
    counts = measured[name][part]
    kernels, traffic = counts.kernels.total(), traffic_of(counts)
    fewest_kernels = measured[FAST_SELFATTN][part].kernels.total()
    return [
        name,
        batch,
        part,
        str(counts.waits.total()),
        f"{kernels:,}",
        f"{kernels / fewest_kernels:.2f}",
        size(traffic),
        f"{traffic / traffic_of(measured[REL_SELFATTN][part]):.2f}",
        number(counts.flops / 1e9),
        *(duration(card.seconds(counts)) for card in CARDS.values()),
    ]


def traffic_of(counts: Counts) -> int:
    """Return the bytes that kernels read and write."""
    return counts.bytes_read + counts.bytes_written


def get_count_parser(
    description: str, name: str, competitors: Sequence[str]
) -> argparse.ArgumentParser:
    """Return a parser of what all commands that count kernels need.

    Args:
        description: Docstring of the command.
        name: Its name, and that of the files it writes.
        competitors: Names of encoders that it counts if not told otherwise.
    """
    parser = get_parser(description, name)
    parser.set_defaults(device="cpu")
    parser.add_argument(
        "--competitors",
        nargs="+",
        choices=list(ENCODERS),
        default=competitors,
        metavar="NAME",
        help=f"of {', '.join(ENCODERS)} (default: {' '.join(competitors)})",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of an utterance")
    parser.add_argument("--num_blocks", type=int, default=SHARED["num_blocks"])
    return parser


def run(
    title: str,
    columns: Sequence[str],
    rows: Callable[[argparse.Namespace], Iterator[list[str]]],
    options: argparse.Namespace,
) -> None:
    """Print rows as they are counted, and save them."""
    settings = settings_of(options)
    torch.set_num_threads(settings.threads)
    report = Report(title, describe_machine(settings), columns=columns)
    print(table(columns, []), flush=True)
    for cells in rows(options):
        report.rows.append(cells)
        report.save(options.output)
        print(f"| {' | '.join(cells)} |", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = get_count_parser(__doc__, "kernels", COMPETITORS)
    parser.add_argument("--batch_size", type=int, default=16)
    run("Kernels on a GPU", COLUMNS, rows, parser.parse_args(argv))


if __name__ == "__main__":
    main()
