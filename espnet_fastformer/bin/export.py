"""Write a trained model to a file for other runtimes.

    espnet-fastformer export --exp exp/asr_train --format onnx
    espnet-fastformer export --exp exp/asr_train --format int8 --output model.onnx
    espnet-fastformer export --exp exp/asr_train --format streaming_onnx --output DIR

The file computes log-probabilities of tokens from features, for any number and length
of utterances: normalisation, encoder and CTC output of the model. It is compared with
the model before the command ends.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet_fastformer.bin.common import (
    check_directory,
    ends_plainly,
    written_at_once,
)
from espnet_fastformer.bin.model_options import (
    add_model_options,
    check_model_options,
    load_by_options,
)
from espnet_fastformer.export.kinds import KINDS

# Of a probability: that of another order of the same sums.
_TOLERANCE = 1e-3


def get_parser() -> argparse.ArgumentParser:
    """Return the parser; options are named as those of the other commands."""
    parser = argparse.ArgumentParser(
        prog="espnet-fastformer export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    parser.add_argument(
        "--format",
        choices=KINDS,
        default="onnx",
        help="; ".join(f"{name}: {kind.use}" for name, kind in KINDS.items())
        + " (default: onnx)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="default: that of the parameters, or of the archive, with another suffix: "
        + ", ".join(kind.suffix for kind in KINDS.values() if not kind.is_for_streams)
        + "; for streams a directory: .streaming",
    )
    parser.add_argument(
        "--chunk_size",
        type=int,
        metavar="FRAMES",
        help="of a chunk of a stream, after subsampling (default: the encoder's "
        "block_size)",
    )
    parser.add_argument(
        "--log_level",
        type=str.upper,
        choices=("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"),
        default="WARNING",
        help="of the messages on standard error (default: WARNING)",
    )
    return parser


@ends_plainly
def main(cmd: Sequence[str] | None = None) -> int:
    """Export a model; return 1 if the file does not compute what the model does."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    check_model_options(parser, args)
    logging.basicConfig(
        level=args.log_level,
        format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s",
    )
    suffix, _, is_for_streams = KINDS[args.format]
    ending = Path(f"model{suffix}").suffix
    if is_for_streams:
        if args.output is not None and args.output.is_file():
            parser.error(f"--output must be a directory: {args.output}")
    elif args.chunk_size is not None:
        parser.error(f"--chunk_size is for streams, not --format {args.format}")
    elif args.output is not None and args.output.suffix != ending:
        parser.error(f"--output must end in {ending}: {args.output}")
    # PyTorch and ESPnet take seconds to import: not for --help or a wrong option.
    from espnet_fastformer.export.exportable import for_streams, load_exportable

    def load(config: Path, model_file: Path):
        # An archive's files are gone afterwards.
        place = args.exp if args.exp and args.exp.is_file() else model_file
        if is_for_streams:
            directory = args.output or place.with_suffix(".streaming")
            output = directory / f"model{suffix}"
        else:
            output = args.output or place.with_suffix(suffix)
        check_directory(parser, output.parent)
        model = load_exportable(config, model_file)
        return for_streams(model, args.chunk_size) if is_for_streams else model, output

    model, output = load_by_options(parser, args, load)
    try:
        if is_for_streams:
            _write_tokens(output.with_name("tokens.txt"), model.metadata)
        difference = _write(output, args.format, model)
    except ModuleNotFoundError as error:
        parser.error(
            f"--format {args.format} needs {error.name}: "
            "pip install 'espnet-fastformer[onnx]'"
        )
    except (OSError, ValueError) as error:
        print(f"{output} is not written: {error}", file=sys.stderr)
        return 1
    print(
        f"{output}: posteriors differ from the model's by {difference.average:.1g} on "
        f"average and up to {difference.largest:.1g}"
    )
    if "int8" in args.format:
        print(
            "That is on noise, which tells little about speech: compare error rates on "
            "recordings of your own before you use the file"
        )
    if is_for_streams:
        print(_tell_runtimes(model))
    return 0


def _write(output: Path, format: str, model):
    """Write a file that computes what the model does, at once or not at all.

    Args:
        output: File to write.
        format: One of ``KINDS``.
        model: :class:`~espnet_fastformer.export.exportable.Exportable`.

    Returns:
        :class:`~espnet_fastformer.export.check.Difference` of file and model.

    Raises:
        ValueError: If the file computes anything else.
    """
    from espnet_fastformer.export.check import compare
    from espnet_fastformer.export.runtime import load
    from espnet_fastformer.export.writers import WRITERS

    with written_at_once(output) as partial:
        WRITERS[format](model.module, model.num_feats, partial, model.metadata)
        difference = compare(model.reference, load(partial), model.frontend, model.fs)
        if "int8" not in format and difference.largest > _TOLERANCE:
            raise ValueError(
                "its posteriors differ from the model's by up to "
                f"{difference.largest:.1g}"
            )
    return difference


def _write_tokens(output: Path, metadata) -> None:
    from espnet_fastformer.export.sherpa import write_tokens

    with written_at_once(output) as partial:
        write_tokens(partial, metadata["token_list"], metadata["token_type"])


def _tell_runtimes(model) -> str:
    """Say what runs a file for streams."""
    if model.why_not_sherpa is None:
        return "It runs in sherpa-onnx, from_zipformer2_ctc, and in ONNX Runtime."
    return f"It runs in ONNX Runtime, but not in sherpa-onnx: {model.why_not_sherpa}."


if __name__ == "__main__":
    sys.exit(main())
