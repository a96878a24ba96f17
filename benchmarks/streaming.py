"""Time of a chunk and bytes of state of streams, against ESPnet's streaming encoder.

All are in a Conformer's block of equal size: 12 blocks, 256 wide, 4 heads, 80 features,
four frames to one. Every call hands on the features of 16 frames, 640 ms: as far as
ESPnet's blocks of 40 frames move on (40/16/16), and a chunk of ours. Streams take turns
call by call.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from espnet2.asr.encoder.contextual_block_conformer_encoder import (
    ContextualBlockConformerEncoder,
)

from benchmarks.command import get_parser, settings_of
from benchmarks.encoders import FEATURES, FRAMES_PER_SECOND, SHARED
from benchmarks.results import Report, describe_machine, duration, size
from espnet_fastformer import AFTEncoder, FastformerEncoder

CHUNK = 16
FEATURES_A_CALL = 4 * CHUNK
CONTEXTUAL = {
    **SHARED,
    "macaron_style": True,
    "cnn_module_kernel": 31,
    "block_size": 40,
    "hop_size": CHUNK,
    "look_ahead": 16,
}
OURS = {
    **SHARED,
    "block_type": "conformer",
    "macaron_ffn": True,
    "cnn_module_kernel": 31,
    "pos_enc_layer_type": "none",
    "block_size": CHUNK,
}
ENCODERS: Mapping[str, Callable[..., torch.nn.Module]] = {
    "contextual_block_conformer": partial(
        ContextualBlockConformerEncoder, **CONTEXTUAL
    ),
    "fastformer": partial(FastformerEncoder, **OURS),
    "aft-simple": partial(AFTEncoder, **OURS, aft_type="simple"),
    "aft-conv": partial(AFTEncoder, **OURS, aft_type="conv"),
    "aft-local": partial(AFTEncoder, **OURS, aft_type="local"),
}
COLUMNS = (
    "encoder",
    "parameters",
    "audio",
    "real-time factor",
    "median",
    "99th percentile",
    "state",
    "times as fast as ESPnet's",
)


@dataclass
class Stream:
    """A stream of one encoder, and the seconds that its calls took."""

    encoder: torch.nn.Module
    state: Any = None
    seconds: list[float] = field(default_factory=list)

    def step(self, features: torch.Tensor) -> None:
        """Hand on the next features (1, T, F)."""
        start = time.perf_counter()
        lengths = torch.tensor([features.size(1)])
        _, _, self.state = self.encoder(
            features, lengths, self.state, is_final=False, infer_mode=True
        )
        if features.is_cuda:
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)


def count_bytes(state: Any) -> int:
    """Return the bytes of all tensors in a state of nested containers."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        state = state.values()
    if isinstance(state, Sequence | type({}.values())) and not isinstance(state, str):
        return sum(map(count_bytes, state))
    return 0


def row(name: str, stream: Stream, reference: Stream, audio: float) -> list[str]:
    """Return the cells of a stream after so many seconds of audio."""
    seconds = sorted(stream.seconds)
    total = sum(seconds)
    return [
        name,
        f"{sum(p.numel() for p in stream.encoder.parameters()):,}",
        f"{audio:g} s",
        f"{total / audio:.4f}",
        duration(statistics.median(seconds)),
        duration(seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]),
        size(count_bytes(stream.state)),
        f"{sum(reference.seconds) / total:.2f}",
    ]


@torch.no_grad()
def measure(
    lengths: Sequence[float], num_blocks: int, device: str
) -> Iterator[list[str]]:
    """Stream noise through all encoders, which take turns call by call.

    Args:
        lengths: Seconds of audio after which there is a row for each.
        num_blocks: Blocks of the encoders.
        device: Where to compute.

    Yields:
        Cells under :data:`COLUMNS`.
    """
    torch.manual_seed(0)
    streams = {
        name: Stream(build(num_blocks=num_blocks).eval().to(device))
        for name, build in ENCODERS.items()
    }
    for stream in streams.values():  # The first calls of a process are slower.
        warm = Stream(stream.encoder)
        for _ in range(3):
            warm.step(torch.randn(1, FEATURES_A_CALL, FEATURES, device=device))
    seconds_a_call = FEATURES_A_CALL / FRAMES_PER_SECOND
    done = 0
    for audio in sorted(lengths):
        while done * seconds_a_call < audio:
            features = torch.randn(1, FEATURES_A_CALL, FEATURES, device=device)
            for stream in streams.values():
                stream.step(features)
            done += 1
        for name, stream in streams.items():
            reference = streams["contextual_block_conformer"]
            yield row(name, stream, reference, done * seconds_a_call)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = get_parser(__doc__, "streaming")
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=float,
        default=(10, 3600),
        metavar="SECONDS",
        help="seconds of audio after which there is a row (default: 10 3600)",
    )
    parser.add_argument("--num_blocks", type=int, default=SHARED["num_blocks"])
    options = parser.parse_args(argv)
    settings = settings_of(options)
    torch.set_num_threads(settings.threads)
    report = Report("Streaming", describe_machine(settings), columns=COLUMNS)
    for cells in measure(options.lengths, options.num_blocks, settings.device):
        report.rows.append(cells)
        print(" | ".join(cells), flush=True)
        report.save(options.output)


if __name__ == "__main__":
    main()
