"""Compare exported files with their model: error rates, and tokens.

    espnet-fastformer export --exp EXP --format int8
    python -m benchmarks.exported_wer --exp EXP --corpus /data/LibriSpeech \\
        --subsets test-clean --files EXP/valid.acc.ave.int8.onnx

    espnet-fastformer export --exp EXP --format streaming_onnx --output streaming
    python -m benchmarks.exported_wer --exp EXP --corpus /data/LibriSpeech \\
        --subsets test-clean --files streaming/model.onnx

The model and each file decode every utterance by itself, greedily by CTC, and tokens
are compared with the model's. Of files for streams, the model takes the same chunks. A
file that sherpa-onnx runs is decoded in steps from the one to the other: with ESPnet's
features, with these clipped as sherpa-onnx clips them, with the zeros after the audio
that sherpa-onnx needs, and by sherpa-onnx itself, which sees two other frames at first.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jiwer
import numpy as np
import torch

from benchmarks.corpus import get_parser as get_corpus_parser
from benchmarks.corpus import read_corpus
from benchmarks.measure import Settings
from benchmarks.results import Report, describe_machine, number, size, table
from benchmarks.scores import count_errors
from espnet_fastformer.export.runtime import load
from espnet_fastformer.inference.audio import duration, read_audio
from espnet_fastformer.inference.ctc import Span
from espnet_fastformer.inference.experiment import CONFIG, find_model_file
from espnet_fastformer.inference.features import Recording, extract_features
from espnet_fastformer.inference.transcriber import Transcriber
from espnet_fastformer.inference.transcript import Transcript

COLUMNS = (
    "decoded by",
    "WER",
    "CER",
    "other tokens in",
    "tokens changed",
    "other than in the row above",
    "size",
    "seconds of audio a second",
)
# Samples of zeros around what sherpa-onnx decodes: see docs/streaming.md.
BEFORE, AFTER = 80, 16000


class Streaming(NamedTuple):
    """How a file takes utterances.

    Attributes:
        chunk_size: Output frames of a chunk; None for whole utterances.
        is_for_sherpa: Whether sherpa-onnx runs it.
    """

    chunk_size: int | None = None
    is_for_sherpa: bool = False


class TokenTranscriber(Transcriber):
    """Keeps the tokens of the last recording.

    Attributes:
        tokens: Them, without those that are no text.
    """

    tokens: Sequence[int] = ()

    def __call__(self, speech: np.ndarray, **options) -> Transcript:
        """See :meth:`Transcriber.__call__`."""
        self.tokens = ()
        return super().__call__(speech, **options)

    def spell(self, spans: list[Span], *args) -> Transcript:
        """See :meth:`Transcriber.spell`."""
        self.tokens = [span.token for span in spans]
        return super().spell(spans, *args)


class ExportedTranscriber(TokenTranscriber):
    """Takes the tokens of each frame from an exported file.

    Args:
        path: The file.
        *args: Those of a Transcriber.
        clips: Whether to clip features as sherpa-onnx does.
        zeros: Samples of zeros after the audio.
    """

    def __init__(self, path: Path, *args, clips: bool = False, zeros: int = 0):
        super().__init__(*args)
        self.exported = load(path, clips)
        self.zeros = zeros

    def best_path(
        self, recording: Recording, progress: Callable[[float], object]
    ) -> torch.Tensor:
        """See :meth:`Transcriber.best_path`."""
        feats = recording.feats
        if self.zeros:
            samples = torch.nn.functional.pad(recording.samples, (0, self.zeros))
            feats = extract_features(self.model.frontend, samples)
        log_probs, _ = self.exported(feats, torch.tensor([feats.size(1)]))
        return log_probs[0].argmax(-1)


class SherpaTranscriber(TokenTranscriber):
    """Leaves all to sherpa-onnx, as docs/streaming.md does.

    Args:
        path: A file for streams, with tokens.txt beside it.
        *args: Those of a Transcriber.
    """

    def __init__(self, path: Path, *args):
        import sherpa_onnx

        super().__init__(*args)
        tokens = path.with_name("tokens.txt")
        self.recognizer = sherpa_onnx.OnlineRecognizer.from_zipformer2_ctc(
            str(tokens), str(path), num_threads=torch.get_num_threads()
        )
        entries = map(str.split, tokens.read_text(encoding="utf-8").splitlines())
        self.ids = {symbol.replace("▁", " "): int(token) for symbol, token in entries}

    def __call__(self, speech: np.ndarray, **options) -> Transcript:
        """See :meth:`Transcriber.__call__`."""
        recognizer = self.recognizer
        stream = recognizer.create_stream()
        stream.accept_waveform(self.fs, np.pad(speech, (BEFORE, AFTER)))
        stream.input_finished()
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
        tokens = (self.ids[symbol] for symbol in recognizer.tokens(stream))
        self.tokens = [token for token in tokens if token not in self.silent]
        return Transcript(" ".join(recognizer.get_result(stream).split()))


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
        chunk_sizes = {streaming(path).chunk_size for path in args.files}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if len(chunk_sizes) > 1:
        parser.error("--files must all be for whole utterances, or for equal chunks")
    audio = sum(map(duration, texts))
    # Or the first would pay for reading what the others find in memory.
    for path in texts:
        path.read_bytes()
    rows, of_model, before = [], None, None
    title = f"{', '.join(args.subsets)}: {len(texts)} utterances, {audio:.0f} s"
    machine = describe_machine(Settings(threads=args.threads))
    report = Report(title, machine, columns=COLUMNS, rows=rows)
    model = (args.exp / CONFIG, model_file)
    for name, path, transcriber in ways(model, chunk_sizes.pop(), args.files):
        start = time.perf_counter()
        hypotheses, tokens = {}, []
        for utterance in texts:
            speech = read_audio(utterance, transcriber.fs)
            hypotheses[utterance] = transcriber(speech).text
            tokens.append(" ".join(map(str, transcriber.tokens)))
        speed = audio / (time.perf_counter() - start)
        errors = count_errors(texts, hypotheses)
        of_model, before = of_model or tokens, before or tokens
        rows.append(
            (
                name,
                f"{errors.word_error_rate:.2f}%",
                f"{errors.character_error_rate:.2f}%",
                f"{sum(map(str.__ne__, tokens, of_model))} of {len(texts)}",
                f"{jiwer.wer(of_model, tokens):.2%}",
                f"{sum(map(str.__ne__, tokens, before))} of {len(texts)}",
                size(path.stat().st_size),
                number(speed),
            )
        )
        before = tokens
        print(*rows[-1], sep="\t", flush=True)
        report.save(args.output)
    print(table(COLUMNS, rows))


def ways(
    model: tuple[Path, Path], chunk_size: int | None, files: Sequence[Path]
) -> Iterator[tuple[str, Path, TokenTranscriber]]:
    """Yield what is decoded with: the model, then each file in each way it can run.

    Args:
        model: Its config and its parameters.
        chunk_size: Frames of the chunks in which all decode; None for whole utterances.
        files: Exported ones.
    """
    transcriber = TokenTranscriber(*model)
    encoder, name = transcriber.model.encoder, model[1].name
    if chunk_size is not None:
        encoder.block_size = encoder.decoding_chunk_size = chunk_size
        name += f", chunks of {chunk_size} frames"
    yield name, model[1], transcriber
    for path in files:
        yield path.name, path, ExportedTranscriber(path, *model)
        if streaming(path).is_for_sherpa:
            for step, zeros in (("features clipped", 0), ("and zeros after", AFTER)):
                clipped = ExportedTranscriber(path, *model, clips=True, zeros=zeros)
                yield f"{path.name}, {step}", path, clipped
            yield f"{path.name} in sherpa-onnx", path, SherpaTranscriber(path, *model)


def streaming(path: Path) -> Streaming:
    """Read in a file how it takes utterances."""
    if path.suffix != ".onnx":
        return Streaming()
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    frames = session.get_outputs()[0].shape[1]
    is_for_sherpa = "feature" in session.get_modelmeta().custom_metadata_map
    return Streaming(frames if isinstance(frames, int) else None, is_for_sherpa)


if __name__ == "__main__":
    main()
