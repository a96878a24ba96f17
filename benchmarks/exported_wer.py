"""Compare the error rates of exported files with those of their model.

    espnet-fastformer export --exp EXP --format int8
    python -m benchmarks.exported_wer --exp EXP --corpus /data/LibriSpeech \\
        --subsets test-clean --files EXP/valid.acc.ave.int8.onnx

The model and each file decode every utterance by itself, greedily by CTC.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.corpus import get_parser as get_corpus_parser
from benchmarks.corpus import read_corpus, transcribe
from benchmarks.measure import Settings
from benchmarks.results import Report, describe_machine, number, size, table
from benchmarks.scores import count_errors
from espnet_fastformer.export.runtime import load
from espnet_fastformer.inference.audio import duration
from espnet_fastformer.inference.experiment import CONFIG, find_model_file
from espnet_fastformer.inference.features import Recording
from espnet_fastformer.inference.transcriber import Transcriber

COLUMNS = ("file", "WER", "CER", "size", "seconds of audio a second")


class ExportedTranscriber(Transcriber):
    """Takes the tokens of each frame from an exported file.

    Args:
        path: The file.
        *args: Those of a Transcriber.
    """

    def __init__(self, path: Path, *args):
        super().__init__(*args)
        self.exported = load(path)

    def best_path(
        self, recording: Recording, progress: Callable[[float], object]
    ) -> torch.Tensor:
        """See :meth:`Transcriber.best_path`."""
        feats = recording.feats
        log_probs, _ = self.exported(feats, torch.tensor([feats.size(1)]))
        return log_probs[0].argmax(-1)


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = get_corpus_parser(__doc__, "exported_wer")
    parser.add_argument(
        "--exp", type=Path, required=True, help="as for espnet-fastformer export"
    )
    parser.add_argument("--asr_model_file", type=Path, help="default: found in EXP")
    parser.add_argument(
        "--files", nargs="+", type=Path, required=True, help="*.onnx or *.pt2"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    """Decode with the model and with each file, and write the table."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    torch.set_num_threads(args.threads)
    try:
        texts = read_corpus(args.corpus, args.subsets)
        model_file = args.asr_model_file or find_model_file(args.exp)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    audio = sum(map(duration, texts))
    # Or the first would pay for reading what the others find in memory.
    for path in texts:
        path.read_bytes()
    rows = []
    for path in (model_file, *args.files):
        model = (args.exp / CONFIG, model_file)
        is_exported = path != model_file
        transcriber = (
            ExportedTranscriber(path, *model) if is_exported else Transcriber(*model)
        )
        start = time.perf_counter()
        hypotheses = transcribe(transcriber, texts)
        speed = audio / (time.perf_counter() - start)
        errors = count_errors(texts, hypotheses)
        rows.append(
            (
                path.name,
                f"{errors.word_error_rate:.2f}%",
                f"{errors.character_error_rate:.2f}%",
                size(path.stat().st_size),
                number(speed),
            )
        )
        print(*rows[-1], sep="\t", flush=True)

    title = f"{', '.join(args.subsets)}: {len(texts)} utterances, {audio:.0f} s"
    machine = describe_machine(Settings(threads=args.threads))
    Report(title, machine, columns=COLUMNS, rows=rows).save(args.output)
    print(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
