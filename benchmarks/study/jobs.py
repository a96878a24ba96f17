"""Commands that run side by side, each with its own log."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

POLL_SECONDS = 0.2
# What libraries read their number of threads from.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Job(NamedTuple):
    """A command.

    Attributes:
        name: What is said of it.
        command: Program and arguments.
        log: File that its output is appended to.
    """

    name: str
    command: list[str]
    log: Path


class StillRunningError(RuntimeError):
    """A command is running already."""


def run_jobs(
    jobs: Sequence[Job], at_a_time: int, threads: int
) -> Iterator[tuple[Job, int]]:
    """Run commands, and say of each that ended with which exit status it did.

    Closing the iterator ends those that run.

    Args:
        jobs: The commands, started in this order.
        at_a_time: How many run at the same time.
        threads: Threads of each.

    Raises:
        StillRunningError: One is still running that an earlier call started.
    """
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    waiting = deque(jobs)
    running: dict[subprocess.Popen, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                job = waiting.popleft()
                print(
                    f"{time.strftime('%H:%M')} {job.name} (see {job.log})", flush=True
                )
                running[_start(job, environment)] = job
            time.sleep(POLL_SECONDS)
            for process in [p for p in running if p.poll() is not None]:
                yield running.pop(process), process.returncode
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, which names an error."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _start(job: Job, environment: dict[str, str]) -> subprocess.Popen:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("a", encoding="utf-8") as log:
        try:
            # Held for as long as the command, or what it starts, has its log open.
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StillRunningError(
                f"{job.name}: still running, since {job.log} is in use. Wait for it, "
                "or end it"
            ) from None
        return subprocess.Popen(
            job.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
