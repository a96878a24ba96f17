"""What the commands share: how they end, and where they write."""

import argparse
import functools
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def ends_plainly(
    main: Callable[[Sequence[str] | None], int],
) -> Callable[[Sequence[str] | None], int]:
    """Let a command that is stopped end with a line at most, and the usual status.

    That is 130 after Ctrl-C, and 141, silently, where nobody reads on. Characters that
    the terminal cannot show are written as escapes.
    """

    @functools.wraps(main)
    def run(cmd: Sequence[str] | None = None) -> int:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            try:
                return main(cmd)
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt:
            print("stopped by Ctrl-C", file=sys.stderr)
            # If the signal came within another exec, as of an import, Python would die
            # of it at the end; this lets it forget.
            exec("")
            return 130
        except OSError as error:
            # What Python still holds for standard output would fail again at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                return 141
            print(f"cannot go on: {error}", file=sys.stderr)
            return 1

    return run


def check_directory(parser: argparse.ArgumentParser, directory: Path) -> None:
    """Make a directory; exit with an error if nothing can be written there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        parser.error(f"cannot write to {directory}: {error.strerror}")


@contextmanager
def written_at_once(path: Path) -> Iterator[Path]:
    """Give a path beside it to write to, which becomes the file if nothing fails."""
    # However long the name is. The suffix tells programs what it is.
    partial = path.with_name(f".{os.getpid()}{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def stem(audio: str) -> str:
    """Return the name, without a suffix, of what is made of audio."""
    return "stdin" if audio == "-" else Path(audio).stem


def reason(error: Exception) -> str:
    """Return the first line of what an error says, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
