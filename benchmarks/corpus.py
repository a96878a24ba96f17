"""Utterances of a corpus in LibriSpeech's layout, with their transcripts."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

RESULTS_DIR = Path(__file__).parent / "results"


def get_parser(description: str, name: str) -> argparse.ArgumentParser:
    """Return a parser of what all commands about error rates need.

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
        "--corpus", type=Path, required=True, help="directory of the subsets"
    )
    parser.add_argument("--subsets", nargs="+", required=True, metavar="SUBSET")
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS_DIR / name,
        help=f"write OUTPUT.json and OUTPUT.md (default: benchmarks/results/{name})",
    )
    return parser


def read_corpus(corpus: Path, subsets: Sequence[str]) -> dict[Path, str]:
    """Return the transcript of each audio file.

    Args:
        corpus: Directory of the subsets.
        subsets: Names of directories with ``*.trans.txt`` beside the audio.

    Raises:
        ValueError: If a subset has no utterance.
    """
    texts = {}
    for subset in subsets:
        found = dict(_read_subset(corpus / subset))
        if not found:
            raise ValueError(f"{corpus / subset} has no utterance beside a *.trans.txt")
        texts |= found
    return texts


def _read_subset(directory: Path) -> Iterator[tuple[Path, str]]:
    for transcript in sorted(directory.rglob("*.trans.txt")):
        for line in transcript.read_text(encoding="utf-8").splitlines():
            utt_id, _, text = line.partition(" ")
            for audio in transcript.parent.glob(f"{utt_id}.*"):
                yield audio, text.strip()
