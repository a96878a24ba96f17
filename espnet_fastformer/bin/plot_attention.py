"""Draw what the encoder of a model weighs in an audio file, under its spectrogram.

    espnet-fastformer plot_attention --exp exp/asr_train talk.wav -o talk.png

Of fastformer these are the weights of both sums over time (alpha and beta, by head), of
aft the softmax of the keys over time (by channel, or by head) and the position bias.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from espnet_fastformer.bin.common import check_directory, ends_plainly, reason, stem
from espnet_fastformer.bin.model_options import (
    add_model_options,
    check_model_options,
    load_by_options,
)


def get_parser() -> argparse.ArgumentParser:
    """Return the parser; options that ESPnet's commands have are named as there."""
    parser = argparse.ArgumentParser(
        prog="espnet-fastformer plot_attention",
        usage="%(prog)s --exp EXP [options] audio",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "audio",
        help="file that soundfile or ffmpeg reads, of any sampling rate, or - for "
        "standard input",
    )
    add_model_options(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="picture to write: png, pdf, svg, ... (default: AUDIO.png in the working "
        "directory)",
    )
    return parser


@ends_plainly
def main(cmd: Sequence[str] | None = None) -> int:
    """Draw the picture; return 1 if the audio or the picture fails, else 0."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    check_model_options(parser, args)
    output = args.output or Path(stem(args.audio) + ".png")
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        parser.error("this needs matplotlib: pip install 'espnet-fastformer[plot]'")
    formats = FigureCanvasBase.get_supported_filetypes()
    if output.suffix[1:].lower() not in formats:
        parser.error(f"{output} must end in one of {', '.join(sorted(formats))}")
    check_directory(parser, output.parent)

    # PyTorch and ESPnet take seconds to import: not for --help or a wrong option.
    from espnet_fastformer.inference.audio import AudioError, read_audio
    from espnet_fastformer.inference.inspection import inspect_recording
    from espnet_fastformer.inference.inspection_figure import draw
    from espnet_fastformer.inference.model import (
        load_model,
        sampling_rate,
        speech_volume,
    )

    model, train_args = load_by_options(parser, args, load_model)
    fs = sampling_rate(train_args)
    try:
        speech = read_audio(args.audio, fs)
        inspection = inspect_recording(model, speech, fs, speech_volume(train_args))
        figure = draw(inspection, model.encoder, Path(args.audio).name)
        with warnings.catch_warnings():
            # Of names in letters that the font has not.
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            figure.savefig(output, dpi=120)
    except AudioError as error:
        print(f"cannot read {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"cannot write {output}: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    except (RuntimeError, MemoryError) as error:
        print(f"cannot draw {args.audio}: {reason(error)}", file=sys.stderr)
        return 1
    print(f"wrote {output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
