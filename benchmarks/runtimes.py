"""Time and memory of encoders with a CTC output in other runtimes.

The encoders are those of benchmarks.encoders. They run as PyTorch runs them (torch),
compiled by torch.compile for all lengths (compile), and as files of the formats of
espnet-fastformer export in ONNX Runtime (onnx, int8), ESPnet's exported the same way.
ONNX Runtime computes on the CPU, and has no training.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from espnet2.asr.ctc import CTC

from benchmarks.command import add_sweep_options, get_parser, run_sweep
from benchmarks.encoders import (
    ENCODERS,
    FEATURES,
    FRAMES_PER_SECOND,
    SHARED,
    build_encoder,
    build_inputs,
)
from benchmarks.measure import Case
from espnet_fastformer.export.kinds import KINDS
from espnet_fastformer.export.module import CTCEncoder
from espnet_fastformer.export.runtime import load
from espnet_fastformer.export.writers import WRITERS

VOCABULARY = 5000
RUNTIMES = ("torch", "compile", "onnx", "int8")
COMPARED = (
    "e_branchformer-rel_selfattn",
    "fastformer",
    "aft-full",
    "aft-local",
    "aft-simple",
    "aft-conv",
)
# Frames of features. ESPnet's table of relative positions cannot grow in a graph.
_MAX_FRAMES = 300 * FRAMES_PER_SECOND


class Exported(torch.nn.Module):
    """A module in ONNX Runtime."""

    def __init__(self, module: torch.nn.Module, format: str):
        super().__init__()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"model{KINDS[format].suffix}"
            WRITERS[format](module.eval(), FEATURES, path, {}, _MAX_FRAMES)
            self.run = load(path)

    def forward(
        self, feats: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Call the file."""
        return self.run(feats, lengths)


def build_module(encoder: str, runtime: str, **options) -> Callable:
    """Build an encoder of :data:`ENCODERS` with a CTC output, in a runtime."""
    module = CTCEncoder(
        build_encoder(encoder, **options), CTC(VOCABULARY, SHARED["output_size"])
    )
    if runtime == "torch":
        return module
    if runtime == "compile":
        return torch.compile(module, dynamic=True)
    module.encoder.embed.pos_enc.extend_pe(torch.zeros(1, _MAX_FRAMES // 4, 1))
    return Exported(module, runtime)


def build_case(
    name: str,
    audio: float,
    batch: int = 1,
    mode: str = "inference",
    dtype: str = "float32",
    **options,
) -> Case:
    """Return the case of an encoder and a runtime, ``fastformer-onnx`` for example."""
    encoder, _, runtime = name.rpartition("-")
    frames = round(FRAMES_PER_SECOND * audio)
    module = partial(build_module, encoder, runtime, **options)
    return Case(name, module, build_inputs, batch, frames, audio, mode, dtype)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = get_parser(__doc__, "runtimes")
    competitors = [f"{encoder}-{name}" for name in RUNTIMES for encoder in ENCODERS]
    add_sweep_options(parser, competitors, (15, 60))
    compared = [f"{encoder}-{name}" for name in RUNTIMES for encoder in COMPARED]
    parser.set_defaults(
        competitors=compared, modes=["inference"], dtypes=["float32"], device="cpu"
    )
    parser.add_argument("--num_blocks", type=int, default=SHARED["num_blocks"])
    options = parser.parse_args(argv)
    run_sweep("Runtimes", options, partial(build_case, num_blocks=options.num_blocks))


if __name__ == "__main__":
    main()
