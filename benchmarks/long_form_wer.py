"""Compare the word error rate of an hour in one piece with that of its utterances.

    python -m benchmarks.long_form_wer --exp EXP --corpus /data/LibriSpeech \
        --subsets test-clean --pooling_windows 15 30 60

Utterances of a corpus in LibriSpeech's layout are joined in random order, each once
before any comes again, with short silences between them. All transcripts are scored
alike, against the joined references.
"""

import argparse
import multiprocessing
import re
import resource
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jiwer
import torch

from benchmarks.corpus import SILENCE, Utterance, draw, join, read_corpus, transcribe
from benchmarks.corpus import get_parser as get_corpus_parser
from benchmarks.measure import Settings
from benchmarks.results import Report, describe_machine, size, table
from espnet_fastformer.inference.audio import duration
from espnet_fastformer.inference.experiment import CONFIG, find_model_file
from espnet_fastformer.inference.transcriber import DTYPES, Transcriber

COLUMNS = ("decoding", "WER", "against one by one", "peak memory")


class Decoded(NamedTuple):
    """Transcript of all utterances, and peak bytes of the process or on the GPU."""

    text: str
    memory: int


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = get_corpus_parser(__doc__, "long_form_wer")
    parser.add_argument(
        "--exp", type=Path, required=True, help="as for espnet-fastformer transcribe"
    )
    parser.add_argument("--asr_model_file", type=Path, help="default: found in EXP")
    parser.add_argument("--hours", type=float, default=1.0, help="default: 1")
    parser.add_argument(
        "--silence",
        type=float,
        nargs=2,
        default=SILENCE,
        metavar=("LEAST", "MOST"),
        help="seconds between two utterances, drawn evenly (default: 0.2 0.8)",
    )
    parser.add_argument(
        "--pooling_windows",
        type=float,
        nargs="*",
        default=[],
        metavar="SECONDS",
        help="windows to try beside one pass over everything",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    has_gpu = int(torch.cuda.is_available())
    parser.add_argument("--ngpu", type=int, choices=(0, 1), default=has_gpu)
    parser.add_argument("--seed", type=int, default=0, help="of order and silences")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    """Decode in each way, in a process of its own, and write the table."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    try:
        texts = read_corpus(args.corpus, args.subsets)
        model_file = args.asr_model_file or find_model_file(args.exp)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    utterances = list(draw(texts, 3600 * args.hours, args.silence, args.seed))
    options = {
        "asr_train_config": args.exp / CONFIG,
        "asr_model_file": model_file,
        "device": "cuda" if args.ngpu else "cpu",
        "dtype": args.dtype,
    }
    reference = " ".join(utterance.text for utterance in utterances)
    ways = {"one by one": (decode_each, None), "one pass": (decode_joined, None)}
    for seconds in args.pooling_windows:
        ways[f"windows of {seconds:g} s"] = (decode_joined, seconds)

    # A new process for each, so that its peak memory is its own.
    pool = ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), max_tasks_per_child=1
    )
    rows = []
    with pool:
        for way, (decode, window) in ways.items():
            settings = {**options, "pooling_window": window}
            decoded = pool.submit(decode, utterances, settings).result()
            rate = jiwer.wer(reference, decoded.text)
            if way == "one by one":
                one_by_one = rate
            is_compared = way != "one by one" and one_by_one
            change = f"{rate / one_by_one - 1:+.1%}" if is_compared else ""
            rows.append((way, f"{rate:.1%}", change, size(decoded.memory)))
            print(*rows[-1], sep="\t", flush=True)

    seconds = sum(duration(u.audio) + u.silence for u in utterances)
    title = (
        f"{args.exp.name}, {seconds:.0f} s of {', '.join(args.subsets)}: "
        f"{len(utterances)} utterances, "
        f"{len(reference.split())} words"
    )
    machine = describe_machine(Settings(device=options["device"]))
    report = Report(title, machine, columns=COLUMNS, rows=rows)
    report.save(args.output)
    print(table(COLUMNS, rows))


def decode_each(utterances: Sequence[Utterance], options: dict) -> Decoded:
    """Transcribe each utterance by itself."""
    transcriber = Transcriber(**options)
    texts = transcribe(transcriber, {utterance.audio for utterance in utterances})
    text = " ".join(texts[utterance.audio] for utterance in utterances)
    return Decoded(text, peak_memory())


def decode_joined(utterances: Sequence[Utterance], options: dict) -> Decoded:
    """Transcribe all utterances as one recording."""
    transcriber = Transcriber(**options)
    text = transcriber(join(utterances, transcriber.fs)).text
    return Decoded(text, peak_memory())


def peak_memory() -> int:
    """Return the peak bytes allocated on the GPU if there is one, else resident."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count the process that started this one.
        return 1024 * int(re.search(r"VmHWM:\s*(\d+)", status.read_text()).group(1))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
