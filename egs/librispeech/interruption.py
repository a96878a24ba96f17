"""The end of a run by a signal: at once, with all that it has started.

ESPnet3 leaves signals to Lightning and Dask, which wait for other processes, or end
with the status of success. Nothing here is imported that takes its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from multiprocessing import resource_tracker

import psutil

# What the run is at; empty where another process says so.
where = "before its first stage"


def end_at_ctrl_c() -> None:
    """Have SIGINT end this process, from a thread that waits for it.

    It is blocked for all other threads, and for all processes that these start: none
    has its own idea of Ctrl-C, whatever handlers it sets (dask_jobqueue, for one, takes
    SIGINT where it is imported, and ends with the status of success), and the main
    thread may be waiting in C++. Call it before there are other threads.
    """
    # Some versions of Python unblock it when they start this process.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Whoever has started this process with it blocked ends it, too.
    if signal.SIGINT not in blocked:
        threading.Thread(target=_wait_for_ctrl_c, daemon=True).start()


def _wait_for_ctrl_c() -> None:
    end(signal.sigwait({signal.SIGINT}))


def end(signum: int) -> None:
    """Say where this run is, and end it and what it has started as a signal would.

    What is finished is whole at any time, so that there is nothing to wait for. A
    shell's loop ends with a command that a signal has ended, but goes on after one that
    exits, with whatever status.

    Args:
        signum: The signal.
    """
    # As signal.signal(), which is for the main thread alone.
    ctypes.CDLL(None).signal(signum, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
    if where:
        with contextlib.suppress(OSError):
            message = f"\nStopped {where}. Give the same command again to go on."
            print(message, file=sys.stderr, flush=True)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    os.kill(os.getpid(), signum)
