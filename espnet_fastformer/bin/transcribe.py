"""Write down what is said in audio files of any length.

    espnet-fastformer transcribe --exp exp/asr_train talk.mp3
    espnet-fastformer transcribe --exp exp/asr_train --format srt --output_dir out *.wav

Each file goes through the encoder in one pass and is decoded greedily by CTC, in time
and memory that grow linearly with it.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from espnet_fastformer.bin.model_options import (
    add_model_options,
    check_model_options,
    explain,
    find_model,
)
from espnet_fastformer.inference.formats import FORMATS, SUFFIXES


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
        help="files that soundfile reads (wav, flac, mp3, ogg, ...), of any sampling "
        "rate; channels are mixed down",
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

    group = parser.add_argument_group("machine")
    group.add_argument(
        "--ngpu",
        type=int,
        choices=(0, 1),
        help="0 for the CPU (default: 1 if there is a GPU)",
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
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


def main(cmd: Sequence[str] | None = None) -> int:
    """Transcribe the files; return 1 if one could not be read or written, else 0."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    outputs = _check_options(parser, args)
    logging.basicConfig(
        level=args.log_level,
        format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s",
    )
    # PyTorch and ESPnet take seconds to import: not for --help or a wrong option.
    from espnet_fastformer.inference.audio import AudioError, duration, read_audio

    transcriber = _load_model(parser, args)
    status = 0
    durations = [duration(path) for path in args.audio]
    bar_format = "{desc}{percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(total=sum(durations), bar_format=bar_format, disable=None) as bar:
        for path, output, seconds in zip(args.audio, outputs, durations, strict=True):
            bar.set_description(Path(path).name)
            try:
                speech = read_audio(path, transcriber.fs)
            except AudioError as error:
                bar.write(f"cannot read {error}", file=sys.stderr)
                status = 1
                continue

            def advance(share: float, seconds: float = seconds) -> None:
                # The shares may add up to a little more than all.
                bar.update(min(share * seconds, bar.total - bar.n))

            word_times = args.word_times or args.format == "srt"
            transcript = transcriber(speech, word_times, advance)
            content = FORMATS[args.format](path, transcript)
            if output is not None:
                try:
                    _write(output, content)
                except OSError as error:
                    bar.write(f"cannot write {output}: {error}", file=sys.stderr)
                    status = 1
                continue
            if args.format == "text" and len(args.audio) > 1:
                lines = content.splitlines(keepends=True)
                content = "".join(f"{path}\t{line}" for line in lines)
            bar.write(content, end="")
    return status


def _check_options(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> list[Path | None]:
    """Return the file to write for each of audio, None for standard output."""
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
    if args.output_dir is None:
        if args.format == "srt" and len(args.audio) > 1:
            parser.error("--format srt needs --output_dir for more than one file")
        return [None] * len(args.audio)

    sources: dict[Path, str] = {}
    for path in args.audio:
        output = args.output_dir / (Path(path).stem + SUFFIXES[args.format])
        if output in sources:
            parser.error(f"{sources[output]} and {path} would both become {output}")
        sources[output] = path
    return list(sources)


def _load_model(parser: argparse.ArgumentParser, args: argparse.Namespace):
    import torch

    from espnet_fastformer.inference.transcriber import Transcriber

    has_gpu = torch.cuda.is_available()
    if args.ngpu == 1 and not has_gpu:
        parser.error("--ngpu 1: PyTorch finds no GPU")
    try:
        transcriber = Transcriber(
            *find_model(args),
            device="cuda" if has_gpu and args.ngpu != 0 else "cpu",
            dtype=args.dtype,
            pooling_window=args.pooling_window,
            beam_size=args.beam_size,
            ctc_weight=args.ctc_weight,
        )
        if args.word_times or args.format == "srt":
            transcriber.check_word_times()
    except OSError as error:
        parser.error(explain(error))
    except ValueError as error:
        parser.error(str(error))
    return transcriber


def _write(path: Path, content: str) -> None:
    """Write a file at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(content, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
