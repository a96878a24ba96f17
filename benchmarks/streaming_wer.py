"""Error rates of streams at several latencies, against whole utterances.

    python -m benchmarks.streaming_wer --exps EXP ... --corpus /data/LibriSpeech \\
        --subsets test-clean test-other --chunk_sizes 32 16 8 4 \\
        --joined_seconds 120 600 --history 20

All are decoded greedily by CTC. ESPnet's contextual block encoder, which is decoded
too, keeps its block size, moves on by half of what it waits for, and looks the other
half ahead: a word may wait as long as in chunks of ours. Joined recordings are
utterances of one speaker, each once before any comes again, with short silences
between them.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from espnet2.asr.encoder.contextual_block_conformer_encoder import (
    ContextualBlockConformerEncoder,
)

from benchmarks.corpus import SILENCE, Utterance, draw, join, read_corpus, transcribe
from benchmarks.corpus import get_parser as get_corpus_parser
from benchmarks.measure import Settings
from benchmarks.results import Report, describe_machine, table
from benchmarks.scores import Errors, count_errors
from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder
from espnet_fastformer.inference.experiment import CONFIG, find_model_file
from espnet_fastformer.inference.features import Recording, normalize_features
from espnet_fastformer.inference.transcriber import Transcriber

COLUMNS = (
    "model",
    "decoding",
    "subset",
    "CER",
    "WER",
    "CER against",
)


class Block(NamedTuple):
    """What a stream hears at once.

    Attributes:
        size: Output frames that the first of them waits for.
        num_left: Earlier chunks that are heard; None for all.
    """

    size: int
    num_left: int | None = None


class BlockTranscriber(Transcriber):
    """Decodes whole recordings, or what a stream makes of them.

    Takes ESPnet's contextual block encoder too.

    Attributes:
        block: How to stream; None for whole recordings.
    """

    block: Block | None = None

    def _check_model(self) -> None:
        encoder = self.model.encoder
        if not isinstance(encoder, LinearTimeEncoder):
            if type(encoder) is not ContextualBlockConformerEncoder:
                raise ValueError(f"{type(encoder).__name__} cannot stream")
            self.trained_size = encoder.block_size

    def best_path(
        self, recording: Recording, progress: Callable[[float], object]
    ) -> torch.Tensor:
        """See :meth:`Transcriber.best_path`."""
        model = self.model
        feats = normalize_features(model.normalize, recording.feats)
        self._set_block(model.encoder)
        lengths = torch.tensor([feats.size(1)])
        hidden, *_ = model.encoder(
            feats, lengths, infer_mode=self.block is not None, is_final=True
        )
        return model.ctc.argmax(hidden)[0]

    def _set_block(self, encoder: torch.nn.Module) -> None:
        block = self.block
        if isinstance(encoder, LinearTimeEncoder):
            if block is not None:
                encoder.block_size, encoder.num_left_chunks = block
        elif block is None:
            encoder.block_size = 0  # ESPnet's word for whole utterances.
        else:
            encoder.hop_size = encoder.look_ahead = block.size // 2
            encoder.block_size = self.trained_size

    def seconds_a_frame(self) -> float:
        """Return the seconds from one output frame to the next."""
        return self._stride * self.model.frontend.hop_length / self.fs


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = get_corpus_parser(__doc__, "streaming_wer")
    parser.add_argument(
        "--exps", type=Path, nargs="+", required=True, help="directories of trainings"
    )
    parser.add_argument(
        "--chunk_sizes",
        type=int,
        nargs="+",
        default=[32, 16, 8, 4],
        metavar="FRAMES",
        help="output frames that words wait for, even (default: 32 16 8 4)",
    )
    parser.add_argument(
        "--joined_seconds",
        type=float,
        nargs="*",
        default=[],
        metavar="SECONDS",
        help="stream utterances of one speaker as recordings of this length too",
    )
    parser.add_argument(
        "--history",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="what streams of joined recordings hear of the past (default: 20)",
    )
    parser.add_argument(
        "--joined_chunk_size",
        type=int,
        default=16,
        metavar="FRAMES",
        help="output frames that their words wait for (default: 16)",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0, help="of order and silences")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    """Decode with each model in each way, and write the table."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    if any(size < 2 or size % 2 for size in args.chunk_sizes):
        parser.error("--chunk_sizes must be even")
    torch.set_num_threads(args.threads)
    try:
        subsets = {name: read_corpus(args.corpus, [name]) for name in args.subsets}
        models = [(exp, find_model_file(exp)) for exp in args.exps]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    rows = []
    machine = describe_machine(Settings(threads=args.threads))
    report = Report("Error rates of streams", machine, columns=COLUMNS, rows=rows)
    for exp, model_file in models:
        transcriber = BlockTranscriber(exp / CONFIG, model_file)
        for subset, texts in subsets.items():
            for row in score(transcriber, texts, args):
                rows.append((exp.name, row[0], subset, *row[1:]))
                print(*rows[-1], sep="\t", flush=True)
                report.save(args.output)
    print(table(COLUMNS, rows))


def score(
    transcriber: BlockTranscriber, texts: Mapping[Path, str], args: argparse.Namespace
) -> Iterator[list[str]]:
    """Yield what a table says of each way to decode a subset."""
    whole = None
    for size in (None, *args.chunk_sizes):
        block = transcriber.block = None if size is None else Block(size)
        errors = count_errors(texts, transcribe(transcriber, texts))
        whole = whole or errors
        yield row(name(transcriber, block), errors, None if size is None else whole)
    if not args.joined_seconds:
        return
    size = args.joined_chunk_size
    frames = args.history / transcriber.seconds_a_frame()
    transcriber.block = Block(size)
    hypotheses = transcribe(transcriber, texts)
    block = transcriber.block = Block(size, max(1, round(frames / size)))
    for seconds in args.joined_seconds:
        recordings = dict(enumerate(join_speakers(texts, seconds, args.seed)))
        references, each, joined = {}, {}, {}
        for number, group in recordings.items():
            references[number] = " ".join(u.text for u in group)
            each[number] = " ".join(hypotheses[u.audio] for u in group)
            joined[number] = transcriber(join(group, transcriber.fs)).text
        what = f"{name(transcriber, block)}: {len(recordings)} of {seconds:g} s"
        one_by_one = count_errors(references, each)
        yield row(f"{what}, one by one", one_by_one, None)
        yield row(f"{what}, joined", count_errors(references, joined), one_by_one)


def join_speakers(
    texts: Mapping[Path, str], seconds: float, seed: int
) -> Iterator[list[Utterance]]:
    """Draw for each speaker the utterances of one recording that lasts so long."""
    speakers: dict[str, dict[Path, str]] = {}
    for audio, text in texts.items():
        speakers.setdefault(audio.parts[-3], {})[audio] = text
    for of_speaker in speakers.values():
        yield list(draw(of_speaker, seconds, SILENCE, seed))


def row(decoding: str, errors: Errors, against: Errors | None) -> list[str]:
    """Return the cells of one way to decode."""
    rates = [errors.character_error_rate, errors.word_error_rate]
    change = ""
    if against is not None and against.character_error_rate:
        change = f"{rates[0] / against.character_error_rate - 1:+.1%}"
    return [decoding, *(f"{rate:.2f}%" for rate in rates), change]


def name(transcriber: BlockTranscriber, block: Block | None) -> str:
    """Name a way to decode."""
    if block is None:
        return "whole"
    milliseconds = 1000 * transcriber.seconds_a_frame()
    latency = f"{milliseconds * block.size:.0f} ms"
    if block.num_left is None:
        return latency
    return f"{latency}, {milliseconds * block.size * block.num_left / 1000:g} s before"


if __name__ == "__main__":
    main()
