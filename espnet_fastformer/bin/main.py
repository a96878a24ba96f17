"""The command espnet-fastformer, which starts the modules beside this one."""

import argparse
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "export": "write a trained model to a file for other runtimes",
    "plot_attention": "draw what an encoder weighs in an audio file",
    "transcribe": "write down what is said in audio files of any length",
}


def main(cmd: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="espnet-fastformer",
        description="commands:\n"
        + "\n".join(f"  {name}: {purpose}" for name, purpose in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="see COMMAND --help")
    args = parser.parse_args(cmd)
    return import_module(f"espnet_fastformer.bin.{args.command}").main(args.options)
