"""The command espnet-fastformer, which starts the modules beside this one."""

import argparse
import platform
from collections.abc import Sequence
from importlib import import_module

from espnet_fastformer import __version__
from espnet_fastformer.bin.common import ends_plainly

COMMANDS = {
    "export": "write a trained model to a file for other runtimes",
    "plot_attention": "draw what an encoder weighs in an audio file",
    "transcribe": "write down what is said in audio files of any length",
}


class _Version(argparse.Action):
    """Prints what a report of a fault should name."""

    def __call__(self, parser, *_) -> None:
        # PyTorch takes seconds to import: not for --help.
        import espnet2
        import torch

        has_gpu = torch.cuda.is_available()
        versions = {
            "espnet-fastformer": __version__,
            "Python": platform.python_version(),
            "PyTorch": torch.__version__,
            "ESPnet": espnet2.__version__,
            "device": torch.cuda.get_device_name() if has_gpu else "cpu",
        }
        for name, version in versions.items():
            print(f"{name}: {version}")
        parser.exit()


@ends_plainly
def main(cmd: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="espnet-fastformer",
        description="commands:\n"
        + "\n".join(f"  {name}: {purpose}" for name, purpose in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        help="print the versions of this package and of what it runs on",
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="see COMMAND --help")
    args = parser.parse_args(cmd)
    return import_module(f"espnet_fastformer.bin.{args.command}").main(args.options)
