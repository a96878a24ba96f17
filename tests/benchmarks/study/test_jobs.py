"""Commands side by side."""

import os
import sys
from contextlib import closing

import pytest

from benchmarks.study.jobs import Job, StillRunningError, last_line, run_jobs


def python(tmp_path, name: str, code: str) -> Job:
    return Job(name, [sys.executable, "-c", code], tmp_path / "logs" / f"{name}.log")


def test_every_job_runs_whatever_becomes_of_the_others(tmp_path):
    jobs = [
        python(tmp_path, "fails", "print('before'); raise ValueError('too large')"),
        python(tmp_path, "works", "import os; print(os.environ['OMP_NUM_THREADS'])"),
    ]
    ended = {job.name: status for job, status in run_jobs(jobs, 2, threads=3)}
    assert ended == {"fails": 1, "works": 0}
    assert last_line(jobs[0].log) == "ValueError: too large"
    assert jobs[1].log.read_text() == "3\n"


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_no_more_at_a_time_than_asked_for(tmp_path, at_a_time):
    events = tmp_path / "events"
    code = f"""
import time
def note(sign):
    with open({str(events)!r}, "a") as file:
        file.write(sign)
note("+"); time.sleep(0.2); note("-")
"""
    jobs = [python(tmp_path, str(number), code) for number in range(4)]
    assert [status for _, status in run_jobs(jobs, at_a_time, 1)] == [0] * 4
    running = peak = 0
    for sign in events.read_text():
        running += 1 if sign == "+" else -1
        peak = max(peak, running)
    assert running == 0
    assert peak <= at_a_time


def test_log_is_continued(tmp_path):
    job = python(tmp_path, "twice", "print('line')")
    for _ in range(2):
        assert [status for _, status in run_jobs([job], 1, 1)] == [0]
    assert job.log.read_text() == "line\nline\n"


def test_whoever_stops_listening_ends_the_rest(tmp_path):
    pid_file = tmp_path / "pid"
    sleep = f"""
import os, time
with open({str(pid_file)!r} + ".tmp", "w") as file:
    file.write(str(os.getpid()))
os.rename({str(pid_file)!r} + ".tmp", {str(pid_file)!r})
time.sleep(600)
"""
    wait = f"""
import os, time
while not os.path.exists({str(pid_file)!r}):
    time.sleep(0.05)
"""
    jobs = [python(tmp_path, "sleeps", sleep), python(tmp_path, "ends", wait)]
    with closing(run_jobs(jobs, 2, 1)) as ended:
        job, status = next(ended)
    assert (job.name, status) == ("ends", 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_job_that_still_runs_is_not_started_again(tmp_path):
    job = python(tmp_path, "sleeps", "import time; time.sleep(600)")
    other = python(tmp_path, "ends", "")
    with closing(run_jobs([job, other], 2, 1)) as ended:
        next(ended)
        with pytest.raises(StillRunningError, match="sleeps: still running"):
            list(run_jobs([job], 1, 1))
