"""Time, memory and operations of competitors that take turns.

Every competitor lives in a process of its own, so that its peak memory is its own, and
running out of memory ends that process alone. One process computes at a time.
"""

import contextlib
import ctypes
import math
import multiprocessing
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch.utils import flop_counter

MODES = ("inference", "training")
DTYPES = ("float32", "bfloat16")

# A sample lasts at least this long, so that starting a clock does not matter.
_SAMPLE_SECONDS = 0.1
# A call this long does not depend on what ran before: it is timed without another one
# to warm up, and the one that measured memory counts as a sample.
_SETTLED_SECONDS = 3.0
_WARM_UP_FRAMES = 64
_START_SECONDS = 600.0
_SLOW_IMPORTS = [
    "benchmarks.measure",
    "espnet2.asr.encoder.conformer_encoder",
    "espnet_fastformer",
]
_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory")


@dataclass(frozen=True)
class Case:
    """A module and the input that it is measured on.

    Attributes:
        name: What the tables call it.
        module: Builds the module.
        inputs: Builds its arguments from a number of utterances and of frames.
        batch: Number of utterances.
        frames: Number of frames of each.
        audio: Seconds of audio that they stand for.
        mode: ``inference``: forward without gradient; ``training``: forward in training
            mode and backward, without an optimiser.
        dtype: ``float32``, or the dtype of autocast.
    """

    name: str
    module: Callable[[], torch.nn.Module]
    inputs: Callable[[int, int], tuple[torch.Tensor, ...]]
    batch: int
    frames: int
    audio: float
    mode: str = "inference"
    dtype: str = "float32"


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        device: ``cpu`` or ``cuda``.
        threads: Threads of a CPU computation.
        rounds: Samples of each competitor at most.
        fewest_rounds: Samples of each competitor at least.
        budget: Seconds of samples of one competitor after which no round is added to
            the fewest.
        time_limit: Seconds that a single call may take.
        memory_limit: Bytes of main memory that a competitor may take beyond what
            importing takes; None for no limit.
    """

    device: str = "cpu"
    threads: int = field(default_factory=torch.get_num_threads)
    rounds: int = 9
    fewest_rounds: int = 3
    budget: float = 20.0
    time_limit: float = 120.0
    memory_limit: int | None = None


@dataclass
class Result:
    """What was measured of a case, or why it was not.

    Attributes:
        seconds: Samples of the time of one call.
        memory: Peak bytes beyond those of the module and its input. On a CPU, resident
            memory of the process; on a GPU, what torch allocated.
        total_memory: Peak bytes of the whole process; on a GPU, with the module and its
            input.
        operations: Two for each multiplication with an addition in matrix products,
            convolutions and scaled dot-product attention of one call.
        peak: Operations a second of a large matrix product, in turns with the rest.
        failure: Why there is no time, or None.
    """

    name: str
    mode: str
    dtype: str
    batch: int
    frames: int
    audio: float
    seconds: list[float] = field(default_factory=list)
    memory: int | None = None
    total_memory: int | None = None
    operations: int | None = None
    peak: float | None = None
    failure: str | None = None

    @classmethod
    def of(cls, case: Case, **measured) -> "Result":
        """Start from what the case is."""
        return cls(
            name=case.name,
            mode=case.mode,
            dtype=case.dtype,
            batch=case.batch,
            frames=case.frames,
            audio=case.audio,
            **measured,
        )

    @property
    def median(self) -> float:
        """Median seconds of a call; NaN if it failed."""
        return self.quartiles[1]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Quartiles of the seconds of a call; NaN if it failed."""
        if self.failure is not None:
            return (math.nan,) * 3
        if len(self.seconds) == 1:
            return (self.seconds[0],) * 3
        return tuple(statistics.quantiles(self.seconds, n=4, method="inclusive"))

    @property
    def speed(self) -> float:
        """Operations a second."""
        return (self.operations or math.nan) / self.median

    @property
    def share_of_peak(self) -> float:
        """Operations a second as a share of a matrix product's."""
        return self.speed / (self.peak or math.nan)


def measure(
    cases: Sequence[Case], settings: Settings, with_operations: bool = True
) -> list[Result]:
    """Measure cases in turns, one call of each and then the next of each.

    Args:
        cases: The competitors.
        settings: How to measure.
        with_operations: Whether to count operations and measure the machine's peak,
            for each dtype that occurs.
    """
    peaks = []
    if with_operations:
        dtypes = dict.fromkeys(case.dtype for case in cases)
        peaks = [_matrix_product(dtype, settings) for dtype in dtypes]
    workers = [_Worker(case, settings) for case in (*cases, *peaks)]
    try:
        for request in ("build", "measure_memory"):
            for worker in workers:
                worker.ask(request)
        if with_operations:
            for worker in workers:
                worker.ask("count_operations")
        for _ in range(settings.rounds):
            for worker in workers:
                if worker.wants_another_round():
                    worker.ask("time")
    finally:
        for worker in workers:
            worker.close()
    results = [worker.result for worker in workers]
    speeds = {r.dtype: r.speed for r in results[len(cases) :] if r.failure is None}
    for result in results[: len(cases)]:
        result.peak = speeds.get(result.dtype)
    return results[: len(cases)]


def sweep(
    points: Iterable[Sequence[Case]],
    settings: Settings,
    record: Callable[[list[Result]], None],
) -> None:
    """Measure points of growing length, and leave out who failed at a shorter one.

    Args:
        points: The competitors at each; the next one is asked for when the one before
            is recorded.
        settings: How to measure.
        record: Called with the results of each point.
    """
    failed: dict[tuple, Result] = {}
    for point in points:
        running = [case for case in point if _competitor(case) not in failed]
        results = dict(zip(running, measure(running, settings), strict=True))
        for case in point:
            if case not in results:
                earlier = failed[_competitor(case)]
                reason = f"{earlier.failure} at {earlier.audio:g} s"
                results[case] = Result.of(case, failure=reason)
            elif results[case].failure is not None:
                failed[_competitor(case)] = results[case]
        record([results[case] for case in point])


def available_memory() -> int | None:
    """Return the bytes of main memory that a process can have now, if known."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _competitor(case: Case) -> tuple:
    return case.name, case.mode, case.dtype


class _MatrixProduct(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left @ right


def _square_matrices(dtype: str, batch: int, size: int) -> tuple[torch.Tensor, ...]:
    matrices = torch.randn(2, size, size).to(getattr(torch, dtype))
    return tuple(matrices.unbind())


def _matrix_product(dtype: str, settings: Settings) -> Case:
    # Large enough that larger ones are no faster.
    if settings.device == "cuda":
        size = 8192
    else:
        size = 1024 * 2 ** math.ceil(math.log2(settings.threads) / 2)
    inputs = partial(_square_matrices, dtype)
    return Case("matrix product", _MatrixProduct, inputs, 1, size, 0.0, dtype=dtype)


class _Worker:
    """The process of one case, seen from the one that asks."""

    def __init__(self, case: Case, settings: Settings):
        self.settings = settings
        self.result = Result.of(case)
        self.connection, other = multiprocessing.Pipe()
        self.process = _context(settings.device).Process(
            target=_serve, args=(other, case, settings), daemon=True
        )
        self.process.start()
        other.close()

    def ask(self, request: str) -> None:
        if self.result.failure is not None:
            return
        limit = _START_SECONDS if request == "build" else self.settings.time_limit
        try:
            self.connection.send(request)
            if not self.connection.poll(limit):
                self._fail(f"over {limit:g} s")
                return
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(10)
            # The kernel kills who takes the last of the memory.
            is_killed = self.process.exitcode in (-9, None)
            reason = f"ended with status {self.process.exitcode}"
            self._fail("out of memory" if is_killed else reason)
            return
        if "seconds" in answer:
            self.result.seconds.append(answer.pop("seconds"))
        self.result = replace(self.result, **answer)

    def wants_another_round(self) -> bool:
        samples = self.result.seconds
        return (
            len(samples) < self.settings.fewest_rounds
            or sum(samples) < self.settings.budget
        )

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()

    def _fail(self, reason: str) -> None:
        self.process.kill()
        self.result.failure = reason


def _context(device: str):
    """Start processes by copying one that has imported everything, if possible.

    A process that importing torch has acquainted with the GPU can't be copied.
    """
    if device == "cuda" or sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_SLOW_IMPORTS)
    return context


def _serve(connection, case: Case, settings: Settings) -> None:
    """Answer the requests for a case with what is to be put into its result."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(settings.threads)
    call = _Call(case, torch.device(settings.device))
    if settings.device == "cuda":
        torch.cuda.init()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _limit_memory(settings.memory_limit)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            connection.send(getattr(call, request)())
        except Exception as error:
            connection.send({"failure": _describe(error)})
            return


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


class _Call:
    """A case in the process that computes it. Every method answers a request."""

    def __init__(self, case: Case, device: torch.device):
        self.case = case
        self.device = device
        self.latest = 0.0

    def build(self) -> dict:
        torch.manual_seed(0)
        training = self.case.mode == "training"
        self.module = self.case.module().train(training).to(self.device)
        # What is compiled depends on the length, and takes more than a call.
        is_compiled = isinstance(self.module, torch._dynamo.OptimizedModule)
        frames = self.case.frames if is_compiled else _WARM_UP_FRAMES
        self._step(self._inputs(min(frames, self.case.frames)))
        self.inputs = self._inputs(self.case.frames)
        self._clear_gradients()
        return {}

    def measure_memory(self) -> dict:
        self._give_back()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        else:
            # Resets the peak on Linux; elsewhere it is that since the start.
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
            before = _peak_resident()
        self._run(1)
        is_cuda = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated() if is_cuda else _peak_resident()
        self._give_back()
        answer = {"memory": peak - before, "total_memory": peak}
        if self.latest > _SETTLED_SECONDS:
            answer["seconds"] = self.latest
        return answer

    def count_operations(self) -> dict:
        with flop_counter.FlopCounterMode(
            display=False, custom_mapping=_OPERATIONS
        ) as counter:
            self._step(self.inputs)
        self._give_back()
        return {"operations": counter.get_total_flops()}

    def time(self) -> dict:
        if self.latest < _SETTLED_SECONDS:
            self._run(1)
        self._run(max(1, math.ceil(_SAMPLE_SECONDS / self.latest)))
        self._give_back()
        return {"seconds": self.latest}

    def _inputs(self, frames: int) -> tuple[torch.Tensor, ...]:
        inputs = self.case.inputs(self.case.batch, frames)
        training = self.case.mode == "training"
        return tuple(
            x.detach().to(self.device).requires_grad_(training and x.requires_grad)
            for x in inputs
        )

    def _run(self, times: int) -> None:
        self._synchronize()
        start = time.perf_counter()
        for _ in range(times):
            self._step(self.inputs)
        self._synchronize()
        self.latest = (time.perf_counter() - start) / times

    def _step(self, inputs: tuple[torch.Tensor, ...]) -> None:
        training = self.case.mode == "training"
        if training:
            self._clear_gradients()
        dtype = getattr(torch, self.case.dtype)
        autocast = torch.autocast(
            self.device.type, dtype, enabled=dtype != torch.float32
        )
        with torch.set_grad_enabled(training):
            with autocast:
                output = self.module(*inputs)
            if training:
                output = output[0] if isinstance(output, tuple) else output
                # Squares of a normalised output would have no gradient.
                output.float().abs().sum().backward()

    def _clear_gradients(self) -> None:
        for x in (*self.module.parameters(), *getattr(self, "inputs", ())):
            x.grad = None

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _give_back(self) -> None:
        """Leave memory that is free but still held to the other processes."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _peak_resident() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _limit_memory(limit: int | None) -> None:
    """Make an allocation fail before the machine runs out of memory."""
    if limit is None or sys.platform != "linux":
        return
    in_use = int(Path("/proc/self/statm").read_text().split()[5])
    soft = in_use * resource.getpagesize() + limit
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _describe(error: Exception) -> str:
    text = str(error)
    if isinstance(error, MemoryError) or any(s in text for s in _OUT_OF_MEMORY):
        return "out of memory"
    line = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {line[:80]}".replace("|", "/")


def _convolution_backward(
    grad_out, x, weight, _bias, _stride, _padding, _dilation, transposed, *rest, **_
) -> int:
    """Count the gradients of input and weight, each as much as the forward pass.

    torch counts that of a grouped weight as if there were no groups.
    """
    output_mask = rest[2]
    forward = flop_counter.conv_flop_count(x, weight, grad_out, transposed)
    return forward * (output_mask[0] + output_mask[1])


def _attention(query, key, value, *_, **__) -> int:
    return flop_counter.sdpa_flop_count(query, key, value)


def _attention_backward(grad_out, query, key, value, *_, **__) -> int:
    return flop_counter.sdpa_backward_flop_count(grad_out, query, key, value)


_aten = torch.ops.aten
# What torch counts wrongly, and what it does not count.
_OPERATIONS = {
    _aten.convolution_backward: _convolution_backward,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
