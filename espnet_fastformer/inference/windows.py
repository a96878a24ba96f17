"""Encoders that see a recording through windows."""

from collections.abc import Callable
from typing import Any

import torch

from espnet_fastformer.encoder.input_layer import receptive_field


def encode_in_windows(
    encoder: torch.nn.Module,
    feats: torch.Tensor,
    window: int | None = None,
    progress: Callable[[float], object] = lambda share: None,
    **options: Any,
) -> torch.Tensor:
    """Run an encoder over windows that overlap by half, and join their middles.

    Args:
        encoder: One of ESPnet's whose input layer has no padding.
        feats: Features (1, T, F), enough of them for one output frame.
        window: Output frames of a window; None for one window over all.
        progress: Called after each block with the share of the work that it was.
        **options: Those of the encoder, beside features and lengths.

    Returns:
        Output (1, T', D), without that of InterCTC layers.
    """
    size, stride = receptive_field(encoder.embed)
    frames = (feats.size(1) - size) // stride + 1
    windows = overlapping_windows(frames, window or frames)
    share = 1 / (len(windows) * len(encoder.encoders))

    def report(*_) -> None:  # What a hook returns would replace the output.
        progress(share)

    hooks = [block.register_forward_hook(report) for block in encoder.encoders]
    parts = []
    try:
        for (first, last), (start, stop) in windows:
            piece = feats[:, first * stride : (last - 1) * stride + size]
            lengths = torch.tensor([piece.size(1)], device=feats.device)
            out, *_ = encoder(piece, lengths, **options)
            if isinstance(out, tuple):  # with the outputs of InterCTC layers
                out = out[0]
            parts.append(out[:, start - first : stop - first])
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(parts, dim=1)


def overlapping_windows(
    frames: int, window: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Lay windows over frames so that each frame lies well inside one.

    Args:
        frames: Number of frames.
        window: Frames of a window. Neighbours share half of it.

    Returns:
        First and last (exclusive) frame of each window, and of its part to be used: the
        middle half, or up to the end of the recording. The parts are the frames, each
        once.
    """
    if frames <= window:
        return [((0, frames), (0, frames))]
    windows = []
    step = max(window // 2, 1)
    margin = (window - step) // 2
    start = 0
    for first in range(0, frames - window + step, step):
        first = min(first, frames - window)
        is_last = first == frames - window
        stop = frames if is_last else first + margin + step
        windows.append(((first, first + window), (start, stop)))
        start = stop
    return windows
