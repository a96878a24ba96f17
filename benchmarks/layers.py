"""Time and memory of the mixers alone, 256 wide, against ESPnet's and plain forms.

A second of audio is 25 frames, as after ESPnet's default subsampling. The plain form is
the definition of AFT in espnet_fastformer/layers/reference.py, which holds a value
for every pair of frames and every channel.
"""

from collections.abc import Sequence
from functools import partial

import torch
from espnet2.asr.layers.fastformer import FastSelfAttention as ESPnetFastSelfAttention

from benchmarks.command import add_sweep_options, get_parser, run_sweep
from benchmarks.measure import Case
from espnet_fastformer.cpu import CPU_LAYERS
from espnet_fastformer.encoder.replacement import replace_layers
from espnet_fastformer.layers.aft import AFT, AFTConv, AFTFull, AFTLocal, AFTSimple
from espnet_fastformer.layers.fastformer import FastSelfAttention
from tests.layers.checks import plain

SIZE = 256
HEADS = 4
DROPOUT = 0.1
FRAMES_PER_SECOND = 25


class SelfMixer(torch.nn.Module):
    """AFT of a sequence with itself, called as additive attention is."""

    def __init__(self, mixer: AFT):
        super().__init__()
        self.mixer = mixer

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mix (B, T, D) with a mask (B, 1, T)."""
        return self.mixer(x, x, x, mask)


class PlainMixer(SelfMixer):
    """The same by the plain definition, without dropout."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mix (B, T, D) with a mask (B, 1, T)."""
        return plain(self.mixer, x, x, x, mask=mask)


def _build_fastformer() -> torch.nn.Module:
    return replace_layers(FastSelfAttention(SIZE, HEADS, DROPOUT), CPU_LAYERS)


def _build_aft(mixer, wrapper=SelfMixer, **options) -> torch.nn.Module:
    return wrapper(replace_layers(mixer(SIZE, DROPOUT, **options), CPU_LAYERS))


# The two additive attentions have the same weights: both draw them alike from one seed.
LAYERS = {
    "espnet-fast_selfattn": partial(ESPnetFastSelfAttention, SIZE, HEADS, DROPOUT),
    "fastformer": _build_fastformer,
    "fastformer-unfolded": partial(FastSelfAttention, SIZE, HEADS, DROPOUT),
    "aft-full-plain": partial(_build_aft, AFTFull, PlainMixer),
    "aft-full": partial(_build_aft, AFTFull),
    "aft-local": partial(_build_aft, AFTLocal),
    "aft-simple": partial(_build_aft, AFTSimple),
    "aft-conv": partial(_build_aft, AFTConv, attention_heads=HEADS),
}


def build_inputs(batch: int, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x (B, T, D), which needs a gradient as in an encoder, and a mask."""
    x = torch.randn(batch, frames, SIZE, requires_grad=True)
    return x, torch.ones(batch, 1, frames, dtype=torch.bool)


def build_case(
    name: str,
    audio: float,
    batch: int = 1,
    mode: str = "inference",
    dtype: str = "float32",
) -> Case:
    """Return the case of a layer on ``batch`` utterances of ``audio`` seconds."""
    frames = max(1, round(FRAMES_PER_SECOND * audio))
    return Case(name, LAYERS[name], build_inputs, batch, frames, audio, mode, dtype)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = get_parser(__doc__, "layers")
    add_sweep_options(parser, list(LAYERS), (2, 5, 15, 60, 240, 900, 3600))
    run_sweep("Layers", parser.parse_args(argv), build_case)


if __name__ == "__main__":
    main()
