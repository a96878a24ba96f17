"""Correctness and speed on a GPU, in one table.

- exactness: layers and encoders against plain definitions in float64 on the processor
- kernels: those that a training step starts, as the profiler sees them
- training: models of whole configurations, with the largest batch that fits
- streaming: time a chunk beside ESPnet's streaming encoder
- recipe: the LibriSpeech recipe on a few minutes of synthetic speech, every stage
- speed: encoders against ESPnet's under bfloat16 autocast, a training step with about
  eight minutes of audio, or one utterance that is longer, and inference with one
- tests: all tests that ask for a GPU

Takes 15 minutes at most, of which the tests may have the last four: what there is no
time for is left out, and named. Each row is written as it comes, so that a run that is
cut off loses nothing.
"""

import argparse
import copy
import gc
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from espnet2.tasks.asr import ASRTask
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks import encoders, layers, models, streaming
from benchmarks.command import get_parser, settings_of
from benchmarks.measure import DTYPES, Case, Result, sweep
from benchmarks.results import (
    Report,
    describe_machine,
    duration,
    number,
    percent,
    size,
    table,
)
from espnet_fastformer.layers.aft import AFT
from espnet_fastformer.layers.fastformer import FastSelfAttention
from tests.layers.checks import plain

ROOT = Path(__file__).parents[1]
PARTS = ("exactness", "kernels", "training", "streaming", "recipe", "speed", "tests")
COLUMNS = ("part", "what", "setting", "measured", "against")
MIXERS = ("fastformer", "aft-full", "aft-local", "aft-simple", "aft-conv")
COMPETITORS = (
    "conformer-rel_selfattn",
    "e_branchformer-rel_selfattn",
    "e_branchformer-rel_selfattn-sdpa",
    "e_branchformer-fast_selfattn",
    *MIXERS,
)
BASELINE = "e_branchformer-rel_selfattn"
LIMITATIONS = ("out of memory", "over ")
# What rounding explains after 12 blocks.
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 5e-2}
RECIPE = (
    *("--corpus_conf", "train_hours=0.05"),
    *("--corpus_conf", "dev_hours=0.01"),
    *("--corpus_conf", "test_hours=0.01"),
    *("--inference_config", str(ROOT / "conf" / "decode_ctc.yaml")),
    *("--max_epoch", "2"),
)
RECIPE_SECONDS = 150.0
TESTS_SECONDS = 240.0
# Of each configuration: what is trained at full size, in utterances of 15 s.
TRAINED = (
    "train_asr_ctc_fastformer_small",
    "train_asr_fastformer",
    "train_asr_aft_simple",
)
UTTERANCE_SECONDS = 15.0
TOKENS = ["<blank>", "<unk>", *map(str, range(4997)), "<sos/eos>"]
TRAINING_SECONDS = 20.0
# What a group of competitors may take to start and to be measured.
GROUP_SECONDS = 60.0


def exactness(options: argparse.Namespace) -> Iterator[list[str]]:
    """Compare outputs and gradients of parameters with definitions in float64.

    Args:
        options: The command line.

    Yields:
        Cells under :data:`COLUMNS`.
    """
    torch.manual_seed(0)
    # TensorFloat-32 rounds the input of a convolution to 10 bits.
    torch.backends.cudnn.allow_tf32 = False
    device = options.device
    names = [name for name in options.competitors if name in MIXERS]
    frames = torch.arange(300)
    lengths = torch.tensor([300, 170])
    real = frames < lengths[:, None]
    for name in names:
        layer = layers.LAYERS[name]()
        x = torch.randn(2, 300, layers.SIZE)
        for dtype, error in errors(layer, x, real.unsqueeze(1), real, device):
            yield comparison(f"{name} layer", dtype, error, LIMITS[dtype])
    for name in names:
        encoder = encoders.build_encoder(name, num_blocks=options.num_blocks)
        xs_pad = torch.randn(2, 300, encoders.FEATURES)
        for dtype, error in errors(encoder, xs_pad, lengths, None, device):
            yield comparison(f"{name} encoder", dtype, error, LIMITS[dtype])


def errors(
    module: torch.nn.Module,
    x: torch.Tensor,
    lengths: torch.Tensor,
    real: torch.Tensor | None,
    device: str,
) -> Iterator[tuple[torch.dtype, float]]:
    """Yield the error of output and gradients by dtype, as a ratio of norms.

    Args:
        module: A layer or an encoder.
        x: Its input (B, T, ...).
        lengths: Its mask or lengths.
        real: Frames of the output to look at (B, T); None for as many as it says.
        device: Where to compute, in float32 and under autocast.
    """
    for key, parameter in module.named_parameters():
        # They start near zero, where they do not matter.
        if "position_bias" in key or "filter" in key:
            torch.nn.init.normal_(parameter, std=0.5)
    module.eval()

    def evaluate(module, x, lengths, dtype):
        module.zero_grad()
        with torch.autocast(x.device.type, dtype, enabled=dtype == torch.bfloat16):
            output = module(x, lengths)
        keep = real
        if isinstance(output, tuple):
            output, olens, _ = output
            keep = torch.arange(output.size(1)) < olens.cpu()[:, None]
        output = output[keep.to(output.device)]
        generator = torch.Generator().manual_seed(0)
        output.backward(torch.randn(output.shape, generator=generator).to(output))
        # Not below the subsampling: where rounding moves its ReLU, gradients jump.
        gradients = [
            parameter.grad.flatten()
            for name, parameter in module.named_parameters()
            if not name.startswith("embed") and parameter.grad is not None
        ]
        return output.detach().double().cpu(), torch.cat(gradients).double().cpu()

    exact = defined(copy.deepcopy(module).double())
    expected = evaluate(exact, x.double(), lengths, torch.float64)
    module = module.to(device)
    for dtype in LIMITS:
        actual = evaluate(module, x.to(device), lengths.to(device), dtype)
        errors = [
            (a - e).norm() / e.norm() for a, e in zip(actual, expected, strict=True)
        ]
        # Unlike Python's, torch's maximum of a number and of none is none.
        yield dtype, torch.stack(errors).max().item()


def defined(module: torch.nn.Module) -> torch.nn.Module:
    """Let every mixer in a module compute its plain definition."""
    for mixer in module.modules():
        if isinstance(mixer, AFT | FastSelfAttention):
            mixer.forward = partial(_plain_forward, mixer)
    return module


def _plain_forward(mixer: torch.nn.Module, *arguments: torch.Tensor) -> torch.Tensor:
    *inputs, mask = arguments
    return plain(mixer, *inputs, mask=mask)


def comparison(what: str, dtype: torch.dtype, error: float, limit: float) -> list[str]:
    """Return a row about an error."""
    verdict = "ok" if error <= limit else "TOO LARGE"
    name = str(dtype).removeprefix("torch.")
    return ["exactness", what, name, f"{error:.1e}", f"limit {limit:.0e}: {verdict}"]


def kernels(options: argparse.Namespace) -> Iterator[list[str]]:
    """Count the kernels of a training step, in float32 and under autocast.

    Args:
        options: The command line.

    Yields:
        Cells under :data:`COLUMNS`.
    """
    activity = ProfilerActivity.CUDA if options.device == "cuda" else None
    for name in options.competitors:
        for dtype in DTYPES[: 2 if activity else 1]:  # bfloat16 is slow on a CPU.
            setting = f"{dtype}, {options.batch_size} x {UTTERANCE_SECONDS:g} s"
            case = encoders.build_case(
                name,
                UTTERANCE_SECONDS,
                options.batch_size,
                num_blocks=options.num_blocks,
            )
            module = case.module().to(options.device).train()
            inputs = [
                x.to(options.device) for x in case.inputs(case.batch, case.frames)
            ]
            try:
                with torch.autocast(
                    options.device, torch.bfloat16, enabled=dtype == "bfloat16"
                ):
                    module(*inputs)[0].float().sum().backward()  # To warm up.
                    with profile(activities=[activity or ProfilerActivity.CPU]) as run:
                        module(*inputs)[0].float().sum().backward()
            except (TypeError, RuntimeError) as error:
                yield ["kernels", name, setting, _last_line(str(error)), ""]
                continue
            events = [e for e in run.events() if _is_kernel(e) or activity is None]
            what = "kernels" if activity else "operations"
            yield ["kernels", name, setting, f"{len(events):,} {what}", ""]


def _is_kernel(event: FunctionEvent) -> bool:
    is_transfer = event.name.startswith(("Memcpy", "Memset"))
    return event.device_type == DeviceType.CUDA and not is_transfer


def training(
    options: argparse.Namespace, seconds_left: Callable[[], float]
) -> Iterator[list[str]]:
    """Train models of whole configurations for some seconds each.

    Args:
        options: The command line.
        seconds_left: Tells how much time there is.

    Yields:
        Cells under :data:`COLUMNS`.
    """
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    for name in options.configs:
        if seconds_left() < 3 * options.training_seconds:
            yield ["training", name, "", "no time left", ""]
            continue
        model = build_model(name, options.num_blocks).to(options.device).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)

        def step(batch: int, model=model, optimizer=optimizer) -> None:
            inputs = models.build_batch(batch, UTTERANCE_SECONDS, 60, len(TOKENS))
            optimizer.zero_grad()
            with torch.autocast(
                options.device, torch.bfloat16, enabled=dtype == "bfloat16"
            ):
                loss, *_ = model(*(x.to(options.device) for x in inputs))
            loss.backward()
            optimizer.step()
            if not math.isfinite(loss.item()):
                raise ValueError(f"loss is {loss.item()}")

        batch = largest_batch(step, options.most_utterances)
        if batch == 0:
            yield ["training", name, "", "FAILED: no utterance fits", ""]
            continue
        start, steps = time.perf_counter(), 0
        while steps == 0 or time.perf_counter() - start < options.training_seconds:
            step(batch)
            steps += 1
        seconds = (time.perf_counter() - start) / steps
        speed = number(batch * UTTERANCE_SECONDS / seconds)
        memory = ""
        if options.device == "cuda":
            memory = size(torch.cuda.max_memory_allocated())
        yield [
            "training",
            name,
            f"{dtype}, {batch} x {UTTERANCE_SECONDS:g} s, with decoder and optimizer",
            f"{duration(seconds)} a step, {memory}".removesuffix(", "),
            f"{speed} s of audio a second",
        ]
        del model, optimizer, step
        _free_memory(options.device)


def build_model(config: str, num_blocks: int) -> torch.nn.Module:
    """Build ESPnet's model of a configuration."""
    arguments = ["--config", str(ROOT / "conf" / f"{config}.yaml")]
    arguments += ["--normalize", "utterance_mvn"]
    arguments += ["--encoder_conf", f"num_blocks={num_blocks}"]
    return models.build_model(ASRTask.get_parser().parse_args(arguments), TOKENS)


def largest_batch(step: Callable[[int], None], most: int) -> int:
    """Return the largest power of two of utterances that a step has memory for."""
    batch = 0
    while max(1, 2 * batch) <= most:
        try:
            step(max(1, 2 * batch))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            break
        batch = max(1, 2 * batch)
    return batch


def _free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def streams(options: argparse.Namespace) -> Iterator[list[str]]:
    """Time chunks of streams, beside ESPnet's streaming encoder.

    Args:
        options: The command line.

    Yields:
        Cells under :data:`COLUMNS`.
    """
    measured = streaming.measure(
        [options.stream_seconds], options.num_blocks, options.device
    )
    for name, _, audio, _, median, last, state, ratio in measured:
        yield [
            "streaming",
            name,
            f"float32, chunks of 640 ms, {audio}",
            f"{median} a chunk (99th percentile {last}), state {state}",
            f"{ratio} x as fast as contextual_block_conformer",
        ]


def tests(options: argparse.Namespace, seconds: float) -> list[str]:
    """Run the tests that ask for a GPU, and return a row about them."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header"]
    command += ["-k", "cuda" if options.device == "cuda" else "cpu", *options.tests]
    outcome = _run(command, seconds)
    return ["tests", " ".join(options.tests), options.device, outcome, ""]


def _run(command: Sequence[str], seconds: float) -> str:
    """Run a command, and return its last line, or why there is none."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"not finished after {seconds:.0f} s"
    last = _last_line(done.stdout)
    if done.returncode != 0:
        return f"FAILED: {last}"
    return f"{last}, {duration(time.perf_counter() - start)}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1][:100].replace("|", "/")


def recipe(device: str, seconds: float) -> list[str]:
    """Run all stages of the recipe, and return a row about it."""
    with tempfile.TemporaryDirectory() as folder:
        directories = [
            f"--{name}_dir={folder}/{name}" for name in ("exp", "data", "download")
        ]
        command = [sys.executable, str(ROOT / "egs" / "librispeech" / "run.py")]
        command += [*RECIPE, *directories, f"--ngpu={int(device == 'cuda')}"]
        outcome = _run(command, seconds)
    return ["recipe", "fastformer", "3 minutes of speech, 2 epochs", outcome, ""]


def points(
    options: argparse.Namespace, seconds_left: Callable[[], float]
) -> Iterator[list[Case]]:
    """Yield the competitors at each length, until there is no time for another.

    Args:
        options: The command line.
        seconds_left: Tells how much time there is.
    """
    for audio in sorted(options.lengths):
        for mode in ("training", "inference"):
            if seconds_left() < GROUP_SECONDS:
                return
            batch = 1
            if mode == "training":
                batch = max(1, round(options.training_audio / audio))
            yield [
                encoders.build_case(
                    name,
                    audio,
                    batch,
                    mode,
                    "bfloat16",
                    num_blocks=options.num_blocks,
                )
                for name in options.competitors
            ]


def speed_row(result: Result, baseline: float) -> list[str]:
    """Return a row about an encoder; ``baseline`` is the time of :data:`BASELINE`."""
    measured = [
        duration(result.median),
        size(result.memory),
        f"{percent(result.share_of_peak)} of the peak",
    ]
    failure = result.failure
    # What runs out of memory or time is a result; any other failure of ours is not.
    if result.name in MIXERS and failure and not failure.startswith(LIMITATIONS):
        failure = f"FAILED: {failure}"
    ratio = number(baseline / result.median)
    return [
        result.mode,
        result.name,
        f"{result.dtype}, {result.batch} x {result.audio:g} s",
        failure or ", ".join(measured),
        f"{ratio} x as fast as {BASELINE}" if ratio else "",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    Raises:
        SystemExit: If there is no GPU, or something is not as it is defined.
    """
    parser = get_parser(__doc__, "gpu")
    parser.set_defaults(device="cuda", rounds=5, time_limit=30.0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--competitors",
        nargs="+",
        choices=COMPETITORS,
        default=COMPETITORS,
        metavar="NAME",
        help=f"of {', '.join(COMPETITORS)} (default: all)",
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=float,
        default=(15, 60, 240, 900, 3600),
        metavar="SECONDS",
        help="seconds of audio (default: 15 60 240 900 3600)",
    )
    parser.add_argument(
        "--training_audio",
        type=float,
        default=480.0,
        metavar="SECONDS",
        help="audio in a training batch (default: 480)",
    )
    parser.add_argument("--num_blocks", type=int, default=encoders.SHARED["num_blocks"])
    parser.add_argument(
        "--minutes",
        type=float,
        default=11.0,
        help="time to stay within; the tests take four more at most (default: 11)",
    )
    parser.add_argument(
        "--batch_size", type=int, default=16, help="of the part kernels (default: 16)"
    )
    parser.add_argument(
        "--configs",
        nargs="+",
        default=TRAINED,
        metavar="NAME",
        help="of the part training, below conf/ (default: " + " ".join(TRAINED) + ")",
    )
    parser.add_argument(
        "--most_utterances",
        type=int,
        default=512,
        help="of its batches (default: 512)",
    )
    parser.add_argument(
        "--training_seconds",
        type=float,
        default=TRAINING_SECONDS,
        help=f"that each is trained for (default: {TRAINING_SECONDS:g})",
    )
    parser.add_argument(
        "--stream_seconds",
        type=float,
        default=60.0,
        help="of audio of the part streaming (default: 60)",
    )
    parser.add_argument(
        "--tests",
        nargs="+",
        default=["tests/layers", "tests/encoder"],
        metavar="PATH",
        help="of the part tests (default: tests/layers tests/encoder)",
    )
    options = parser.parse_args(argv)
    settings = settings_of(options, budget=2.0)
    end = time.monotonic() + 60.0 * options.minutes
    report = Report("GPU", describe_machine(settings), columns=COLUMNS)

    def seconds_left() -> float:
        return end - time.monotonic()

    def add(row: list[str]) -> None:
        report.rows.append(row)
        report.save(options.output)
        print(f"| {' | '.join(row)} |", flush=True)

    print(table(COLUMNS, []), flush=True)
    parts = {
        "exactness": lambda: exactness(options),
        "kernels": lambda: kernels(options),
        "training": lambda: training(options, seconds_left),
        "streaming": lambda: streams(options),
        "recipe": lambda: [recipe(options.device, min(RECIPE_SECONDS, seconds_left()))],
    }
    for part, measure in parts.items():
        if part in options.parts:
            for row in measure():
                add(row)
    if "speed" in options.parts:

        def record(results: list[Result]) -> None:
            report.results += results
            seconds = {result.name: result.median for result in results}
            for result in results:
                add(speed_row(result, seconds.get(BASELINE, math.nan)))

        sweep(points(options, seconds_left), settings, record)
        groups = 2 * len(options.lengths) - len(report.results) // len(
            options.competitors
        )
        if groups:
            add(["speed", "", "", f"no time for {groups} more groups", ""])
    if "tests" in options.parts:
        add(tests(options, max(seconds_left(), TESTS_SECONDS)))
    if any("TOO LARGE" in row[-1] or "FAILED" in row[-2] for row in report.rows):
        raise SystemExit("Something is not as it should be: see the table.")


if __name__ == "__main__":
    main()
