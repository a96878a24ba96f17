"""What sherpa-onnx wants of a model that it runs, beside its graph."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from espnet2.asr.frontend.abs_frontend import AbsFrontend
from espnet2.asr.frontend.default import DefaultFrontend

from espnet_fastformer.encoder.input_layer import receptive_field
from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder
from espnet_fastformer.inference.ctc import BLANK
from espnet_fastformer.inference.features import extract_features

# Options of ESPnet's default frontend with which it computes the same features.
_FRONTEND = {"n_fft": 400, "win_length": 400, "hop_length": 160}
# Features of one frame to which its time stamps hold.
_STRIDE = 4


def why_not(frontend: AbsFrontend, fs: int, encoder: LinearTimeEncoder) -> str | None:
    """Say why sherpa-onnx cannot run a model; None if it can."""
    wanted = ", ".join(f"{key}: {value}" for key, value in _FRONTEND.items())
    if not _is_its_own(frontend, fs):
        return (
            "it computes other features than the model's frontend: those of frontend: "
            f"default with fs: 16000, n_mels: 80, {wanted}"
        )
    _, stride = receptive_field(encoder.embed)
    if stride != _STRIDE:
        return (
            f"it takes {_STRIDE} features to a frame, as of input_layer: conv2d, but "
            f"the encoder {stride}"
        )
    return None


@torch.no_grad()
def _is_its_own(frontend: AbsFrontend, fs: int) -> bool:
    """Tell whether a frontend computes what sherpa-onnx does, whatever its options."""
    noise = torch.rand(16000, generator=torch.Generator().manual_seed(0)) - 0.5
    wanted, _ = DefaultFrontend(**_FRONTEND).eval()(noise[None], torch.tensor([16000]))
    feats = extract_features(frontend, noise)
    return fs == 16000 and feats.shape == wanted.shape and feats.allclose(wanted)


def clip(x: np.ndarray) -> np.ndarray:
    """Clip features as sherpa-onnx does: 80 dB below the greatest of a chunk.

    Args:
        x: The features of a chunk, scaled as it scales them (B, T, F).
    """
    return np.maximum(x, x.max(axis=(1, 2), keepdims=True) - 2.0)


def write_tokens(path: Path, token_list: Sequence[str], token_type: str | None) -> None:
    """Write the tokens as sherpa-onnx reads them, one a line with its number."""

    def symbol(number: int, token: str) -> str:
        if number == BLANK:
            # Multi-blank transducers have other blanks before this.
            return token if token == "<blank>" else "<blk>"
        if token == "<space>":
            return "▁"
        return f"▁{token}" if token_type == "word" else token

    lines = [f"{symbol(*entry)} {entry[0]}\n" for entry in enumerate(token_list)]
    path.write_text("".join(lines), encoding="utf-8")
