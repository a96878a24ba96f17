"""Correctness and speed on a GPU, in one table.

- exactness: layers and encoders against plain definitions in float64 on the processor
- recipe: the LibriSpeech recipe on a few minutes of synthetic speech, every stage
- speed: encoders against ESPnet's under bfloat16 autocast, a training step with about
  eight minutes of audio, or one utterance that is longer, and inference with one

Takes eight minutes at most: what there is no time for is left out, and named.
"""

import argparse
import copy
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks import encoders, layers
from benchmarks.command import get_parser, settings_of
from benchmarks.measure import Case, Result, sweep
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
PARTS = ("exactness", "recipe", "speed")
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
RECIPE_SECONDS = 180.0
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


def recipe(device: str, seconds: float) -> list[str]:
    """Run all stages of the recipe, and return a row about it."""
    with tempfile.TemporaryDirectory() as folder:
        directories = [
            f"--{name}_dir={folder}/{name}" for name in ("exp", "data", "download")
        ]
        command = [sys.executable, str(ROOT / "egs" / "librispeech" / "run.py")]
        command += [*RECIPE, *directories, f"--ngpu={int(device == 'cuda')}"]
        start = time.perf_counter()
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            outcome = f"not finished after {seconds:.0f} s"
        else:
            outcome = duration(time.perf_counter() - start)
            if done.returncode != 0:
                last = (done.stdout.strip().splitlines() or ["no output"])[-1]
                outcome = f"FAILED: {last[:100]}".replace("|", "/")
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
        "--minutes", type=float, default=8.0, help="time to stay within (default: 8)"
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
    if "exactness" in options.parts:
        for row in exactness(options):
            add(row)
    if "recipe" in options.parts:
        add(recipe(options.device, min(RECIPE_SECONDS, seconds_left())))
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
    if any("TOO LARGE" in row[-1] or "FAILED" in row[-2] for row in report.rows):
        raise SystemExit("Something is not as it should be: see the table.")


if __name__ == "__main__":
    main()
