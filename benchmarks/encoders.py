"""Time and memory of whole encoders against ESPnet's of equal size.

All are as ESPnet's E-Branchformer for LibriSpeech-100: 12 blocks, 256 wide, 4 heads, 80
features, four frames to one. A second of audio is 100 frames of features.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from espnet2.utils.types import str2bool

from benchmarks.command import add_sweep_options, get_parser, run_sweep
from benchmarks.measure import Case
from espnet_fastformer import AFTEncoder, FastformerEncoder
from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder

FEATURES = 80
FRAMES_PER_SECOND = 100
SHARED = {
    "input_size": FEATURES,
    "output_size": 256,
    "attention_heads": 4,
    "linear_units": 1024,
    "num_blocks": 12,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "input_layer": "conv2d",
}
E_BRANCHFORMER = {
    **SHARED,
    "cgmlp_linear_units": 1024,
    "cgmlp_conv_kernel": 31,
    "use_ffn": True,
    "macaron_ffn": True,
    "merge_conv_kernel": 31,
}
CONFORMER = {
    **SHARED,
    "macaron_style": True,
    "cnn_module_kernel": 31,
    "rel_pos_type": "latest",
}
FAST_SELFATTN = {
    "attention_layer_type": "fast_selfattn",
    "pos_enc_layer_type": "abs_pos",
}
ENCODERS: dict[str, tuple[type[torch.nn.Module], dict[str, Any]]] = {
    "conformer-rel_selfattn": (ConformerEncoder, CONFORMER),
    "conformer-rel_selfattn-sdpa": (ConformerEncoder, CONFORMER | {"use_sdpa": True}),
    "e_branchformer-rel_selfattn": (EBranchformerEncoder, E_BRANCHFORMER),
    "e_branchformer-rel_selfattn-sdpa": (
        EBranchformerEncoder,
        E_BRANCHFORMER | {"use_sdpa": True},
    ),
    "e_branchformer-fast_selfattn": (
        EBranchformerEncoder,
        E_BRANCHFORMER | FAST_SELFATTN,
    ),
    "fastformer": (FastformerEncoder, E_BRANCHFORMER),
    "aft-full": (AFTEncoder, E_BRANCHFORMER | {"aft_type": "full"}),
    "aft-local": (AFTEncoder, E_BRANCHFORMER | {"aft_type": "local"}),
    "aft-simple": (AFTEncoder, E_BRANCHFORMER | {"aft_type": "simple"}),
    "aft-conv": (AFTEncoder, E_BRANCHFORMER | {"aft_type": "conv"}),
}


def build_encoder(name: str, **options) -> torch.nn.Module:
    """Build an encoder of :data:`ENCODERS`, with some options replaced.

    ESPnet's are built without ``use_cpu_layers``, which they do not know.
    """
    encoder, conf = ENCODERS[name]
    if not issubclass(encoder, LinearTimeEncoder):
        options.pop("use_cpu_layers", None)
    return encoder(**conf | options)


def build_inputs(batch: int, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (B, T, F) without padding, and their lengths (B,)."""
    return torch.randn(batch, frames, FEATURES), torch.full((batch,), frames)


def build_case(
    name: str,
    audio: float,
    batch: int = 1,
    mode: str = "inference",
    dtype: str = "float32",
    **options,
) -> Case:
    """Return the case of an encoder on ``batch`` utterances of ``audio`` seconds."""
    frames = round(FRAMES_PER_SECOND * audio)
    module = partial(build_encoder, name, **options)
    return Case(name, module, build_inputs, batch, frames, audio, mode, dtype)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = get_parser(__doc__, "encoders")
    add_sweep_options(parser, list(ENCODERS), (5, 15, 60, 240, 900, 3600))
    parser.add_argument("--num_blocks", type=int, default=SHARED["num_blocks"])
    parser.add_argument(
        "--use_cpu_layers",
        type=str2bool,
        default=True,
        help="of our encoders, as in their configuration (default: true)",
    )
    options = parser.parse_args(argv)
    conf = {name: getattr(options, name) for name in ("num_blocks", "use_cpu_layers")}
    run_sweep("Encoders", options, partial(build_case, **conf))


if __name__ == "__main__":
    main()
