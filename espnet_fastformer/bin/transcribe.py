"""Write down what is said in audio files of any length.

    espnet-fastformer transcribe --exp exp/asr_train talk.mp3
    espnet-fastformer transcribe --exp exp/asr_train --format srt --output_dir out *.wav

    arecord -f S16_LE -r 16000 | espnet-fastformer transcribe --exp EXP --streaming -

Each file goes through the encoder in one pass and is decoded greedily by CTC, in time
and memory that grow linearly with it; with --streaming while it goes on, in constant
memory.
"""

import argparse
import io
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from espnet_fastformer.bin.common import (
    check_directory,
    ends_plainly,
    reason,
    stem,
    written_at_once,
)
from espnet_fastformer.bin.model_options import (
    add_model_options,
    check_model_options,
    load_by_options,
)
from espnet_fastformer.inference.formats import FORMATS, SUFFIXES
from espnet_fastformer.inference.transcript import Transcript


def get_parser() -> argparse.ArgumentParser:
    """Return the parser; options that ESPnet's commands have are named as there."""
    parser = argparse.ArgumentParser(
        prog="espnet-fastformer transcribe",
        usage="%(prog)s --exp EXP [options] audio [audio ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "audio",
        nargs="+",
        help="files or pipes, - for standard input, that soundfile reads (wav, flac, "
        "mp3, ogg, ...), or ffmpeg where it is installed (m4a, mp4, ...), of any "
        "sampling rate; channels are mixed down",
    )

    add_model_options(parser)

    group = parser.add_argument_group("output")
    group.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="text, JSON (one object a line), or SRT subtitles (default: text)",
    )
    group.add_argument(
        "--word_times",
        action="store_true",
        help="start and end of each word in seconds: as tab-separated lines of text, "
        "or as words of JSON",
    )
    group.add_argument(
        "--output_dir",
        type=Path,
        help="write AUDIO.txt, .json or .srt there, one for each file (default: write "
        "to standard output)",
    )

    group = parser.add_argument_group("decoding")
    group.add_argument(
        "--pooling_window",
        type=float,
        metavar="SECONDS",
        help="let the encoder sum over this much audio instead of all of it: it runs "
        "over windows of that length which overlap by half, and the middle of each is "
        "used (default: one pass over everything)",
    )
    group.add_argument(
        "--beam_size",
        type=int,
        default=1,
        help="1: greedy search in the CTC output; more: ESPnet's beam search, joint "
        "with the decoder, for utterances of seconds (default: 1)",
    )
    group.add_argument(
        "--ctc_weight",
        type=float,
        default=0.3,
        help="of the CTC output in ESPnet's beam search (default: 0.3)",
    )

    group = parser.add_argument_group(
        "streaming", "for models trained with encoder_conf: dynamic_chunk_training"
    )
    group.add_argument(
        "--streaming",
        action="store_true",
        help="write words as they are said, never to be changed, also from a pipe "
        "that is still written to",
    )
    group.add_argument(
        "--chunk_size",
        type=int,
        metavar="FRAMES",
        help="frames of the encoder, 40 ms each with conv2d, that are encoded "
        "together: what words wait for (default: block_size of the model, or 16)",
    )
    group.add_argument(
        "--num_left_chunks",
        type=int,
        metavar="CHUNKS",
        help="chunks that each chunk sees before it, -1 for all (default: as in "
        "training)",
    )

    group = parser.add_argument_group("machine")
    group.add_argument(
        "--ngpu",
        type=int,
        choices=(0, 1),
        help="0 for the CPU (default: 1 if there is a GPU)",
    )
    group.add_argument(
        "--dtype",
        choices=("float64", "float32", "bfloat16", "float16"),
        default="float32",
        help="of the encoder's products (default: float32)",
    )
    group.add_argument(
        "--log_level",
        type=str.upper,
        choices=("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"),
        default="WARNING",
        help="of the messages on standard error (default: WARNING)",
    )
    return parser


@ends_plainly
def main(cmd: Sequence[str] | None = None) -> int:
    """Transcribe the files; return 1 if there was one that could not be, else 0."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    outputs = _check_options(parser, args)
    if args.format == "json" and isinstance(sys.stdout, io.TextIOWrapper):
        # As JSON is wherever it goes.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    logging.basicConfig(
        level=args.log_level,
        format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s",
    )
    # PyTorch and ESPnet take seconds to import: not for --help or a wrong option.
    from espnet_fastformer.inference.audio import AudioError, duration, read_audio

    transcriber = _load_model(parser, args)
    status = 0 if len(outputs) == len(args.audio) else 1
    durations = [duration(path) for path, _ in outputs]
    word_times = args.word_times or args.format == "srt"
    bar_format = "{desc}{percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    hidden = args.streaming or None  # None: where there is no terminal.
    is_stopped = threading.Event()
    with tqdm(total=sum(durations), bar_format=bar_format, disable=hidden) as bar:
        for (path, output), seconds in zip(outputs, durations, strict=True):
            bar.set_description(Path(path).name)

            def advance(share: float, seconds: float = seconds) -> None:
                # The shares may add up to a little more than all.
                bar.update(min(share * seconds, bar.total - bar.n))

            failure = None
            try:
                if args.streaming:
                    transcript, failure = _stream(
                        transcriber, path, args, output, is_stopped
                    )
                else:
                    speech = read_audio(path, transcriber.fs)
                    transcript = transcriber(speech, word_times, advance)
            except OSError:  # of standard output; of the file it would be AudioError
                raise
            except Exception as error:  # of this file, whatever it is
                transcript, failure = None, error
            if failure is not None:
                if isinstance(failure, AudioError):
                    message = f"cannot read {failure}"
                else:
                    message = f"cannot transcribe {path}: {_explain(failure)}"
                logging.debug("%s", path, exc_info=failure)
                bar.write(message, file=sys.stderr)
                status = 1
            if transcript is not None:
                content = FORMATS[args.format](path, transcript)
                if output is None:
                    if args.format == "text" and len(args.audio) > 1:
                        lines = content.splitlines(keepends=True)
                        content = "".join(f"{path}\t{line}" for line in lines)
                    bar.write(content, end="")
                    sys.stdout.flush()
                elif not _write(output, content, bar):
                    status = 1
            if is_stopped.is_set():
                raise KeyboardInterrupt
    return status


def _check_options(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> list[tuple[str, Path | None]]:
    """Return what is to be transcribed, and into which file: standard output if None.

    What would overwrite the transcript of another file is named and left out.
    """
    check_model_options(parser, args)
    if args.beam_size < 1:
        parser.error(f"--beam_size must be at least 1: {args.beam_size}")
    if args.beam_size > 1:
        greedy = {
            "--word_times": args.word_times,
            "--pooling_window": args.pooling_window is not None,
            "--format srt": args.format == "srt",
        }
        for option in (name for name, is_given in greedy.items() if is_given):
            parser.error(f"{option} needs greedy search: --beam_size 1")
    if args.streaming:
        whole = {
            "--beam_size": args.beam_size > 1,
            "--pooling_window": args.pooling_window is not None,
        }
        for option in (name for name, is_given in whole.items() if is_given):
            parser.error(f"{option} is for whole recordings: not with --streaming")
    else:
        for option in ("chunk_size", "num_left_chunks"):
            if getattr(args, option) is not None:
                parser.error(f"--{option} needs --streaming")
    if args.output_dir is None:
        if args.format == "srt" and len(args.audio) > 1:
            parser.error("--format srt needs --output_dir for more than one file")
        return [(path, None) for path in args.audio]

    check_directory(parser, args.output_dir)
    sources: dict[Path, str] = {}
    for path in args.audio:
        output = args.output_dir / (stem(path) + SUFFIXES[args.format])
        if output in sources:
            print(
                f"{sources[output]} and {path} would both become {output}: the second "
                "is left out; it needs another name or --output_dir",
                file=sys.stderr,
            )
        sources.setdefault(output, path)
    return [(path, output) for output, path in sources.items()]


def _stream(
    transcriber,
    path: str,
    args: argparse.Namespace,
    output: Path | None,
    is_stopped: threading.Event,
) -> tuple[Transcript | None, Exception | None]:
    """Transcribe a recording as it comes, and show its text as it comes.

    Ctrl-C sets ``is_stopped`` and ends it as its own end does; a second one at once.

    Returns:
        The transcript, if there is something to be written when it is complete; and
        what ended the recording early, after which the words up to then are kept.
    """
    import numpy as np

    from espnet_fastformer.inference.audio import AudioError, live_blocks
    from espnet_fastformer.inference.streaming import StreamingTranscriber

    streamer = StreamingTranscriber(transcriber, args.chunk_size, args.num_left_chunks)
    is_live = output is None and args.format == "text"
    name = f"{path}\t" if len(args.audio) > 1 else ""
    parts: list[Transcript] = []
    is_first = True

    def take(part: Transcript) -> None:
        nonlocal is_first
        if not part.words:
            return
        if not is_live:
            parts.append(part)
        elif args.word_times:
            lines = FORMATS["text"](path, part).splitlines()
            print("".join(f"{name}{line}\n" for line in lines), end="", flush=True)
        else:
            start = name if is_first else transcriber.separator
            print(start + part.text, end="", flush=True)
        is_first = False

    def stop(*_) -> None:
        # Not within a chunk: its words would be lost.
        is_stopped.set()
        signal.signal(signal.SIGINT, handler)

    failure = None
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, stop)
    try:
        try:
            for block in live_blocks(path, transcriber.fs, is_stopped):
                take(streamer(block))
        except AudioError as error:
            failure = error
        take(streamer(np.zeros(0, dtype="float32"), is_final=True))
    finally:
        signal.signal(signal.SIGINT, handler)
    if is_first and failure is not None:
        return None, failure
    if is_live:
        if not args.word_times:
            print(name if is_first else "", flush=True)
        return None, failure
    words = [word for part in parts for word in part.words]
    text = transcriber.separator.join(part.text for part in parts)
    words = words if args.word_times or args.format == "srt" else None
    return Transcript(text, words), failure


def _explain(error: Exception) -> str:
    import torch

    # PyTorch has no class of its own for a CPU's.
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "allocate memory" in str(error)
    ):
        return f"{reason(error)} (--pooling_window 30 needs less memory)"
    return reason(error)


def _load_model(parser: argparse.ArgumentParser, args: argparse.Namespace):
    import torch

    from espnet_fastformer.inference.transcriber import Transcriber

    has_gpu = torch.cuda.is_available()
    if args.ngpu == 1 and not has_gpu:
        parser.error("--ngpu 1: PyTorch finds no GPU")

    def load(config: Path, model_file: Path) -> Transcriber:
        transcriber = Transcriber(
            config,
            model_file,
            device="cuda" if has_gpu and args.ngpu != 0 else "cpu",
            dtype=args.dtype,
            pooling_window=args.pooling_window,
            beam_size=args.beam_size,
            ctc_weight=args.ctc_weight,
        )
        if args.word_times or args.format == "srt":
            transcriber.check_word_times()
        if args.streaming:
            from espnet_fastformer.inference.streaming import StreamingTranscriber

            # What cannot be streamed is said before there is something to read.
            StreamingTranscriber(transcriber, args.chunk_size, args.num_left_chunks)
        return transcriber

    return load_by_options(parser, args, load)


def _write(path: Path, content: str, bar: tqdm) -> bool:
    """Write a file, tell what became of it, and return whether it is there."""
    try:
        with written_at_once(path) as partial:
            # As in JSON: names of files may hold bytes that are no characters.
            partial.write_text(content, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        bar.write(f"cannot write {path}: {error}", file=sys.stderr)
        return False
    bar.write(f"wrote {path}", file=sys.stderr)
    return True


if __name__ == "__main__":
    sys.exit(main())
