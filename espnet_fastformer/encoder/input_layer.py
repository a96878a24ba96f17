"""From features or tokens to the first block's input, by ESPnet's own modules."""

import logging
import weakref

import torch
from espnet2.legacy.nets.pytorch_backend.transformer.embedding import (
    ConvolutionalPositionalEmbedding,
)
from espnet2.legacy.nets.pytorch_backend.transformer.subsampling import (
    Conv1dSubsampling1,
    Conv1dSubsampling2,
    Conv1dSubsampling3,
    Conv2dSubsampling,
    Conv2dSubsampling1,
    Conv2dSubsampling2,
    Conv2dSubsampling6,
    Conv2dSubsampling8,
    TooShortUttError,
    check_short_utt,
)

from espnet_fastformer.encoder.positional_encoding import (
    ScaledSinusoidalEncoding,
    SinusoidalEncoding,
)
from espnet_fastformer.layers import pieces
from espnet_fastformer.layers.modes import has_hooks, is_traced

SUBSAMPLING = {
    "conv1d1": Conv1dSubsampling1,
    "conv1d2": Conv1dSubsampling2,
    "conv1d3": Conv1dSubsampling3,
    "conv2d": Conv2dSubsampling,
    "conv2d1": Conv2dSubsampling1,
    "conv2d2": Conv2dSubsampling2,
    "conv2d6": Conv2dSubsampling6,
    "conv2d8": Conv2dSubsampling8,
}
# What leaves one feature after two-dimensional subsampling.
LEAST_FEATURES = {"conv2d": 7, "conv2d1": 5, "conv2d2": 7, "conv2d6": 11, "conv2d8": 15}
# Input layers that have met an utterance that was too short.
_NAMED: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

POSITIONAL_ENCODING = {
    "abs_pos": SinusoidalEncoding,
    "scaled_abs_pos": ScaledSinusoidalEncoding,
    "conv": ConvolutionalPositionalEmbedding,
}
# A sine and a cosine each, and the groups of ESPnet's convolution over time.
CHANNEL_UNITS = {"abs_pos": 2, "scaled_abs_pos": 2, "conv": 16}


def build_positional_encoding(
    pos_enc_layer_type: str | None,
    output_size: int,
    dropout_rate: float,
    max_len: int,
) -> torch.nn.Module:
    """Build ESPnet's positional encoding of that name, or none.

    Args:
        pos_enc_layer_type: ``abs_pos``, ``scaled_abs_pos``, ``conv``; ``none`` or None.
        output_size: Number of channels D.
        dropout_rate: Dropout after the encoding.
        max_len: Number of positions computed in advance.

    Raises:
        ValueError: If the name is unknown, or the size does not fit.
    """
    if pos_enc_layer_type in (None, "none"):
        return torch.nn.Identity()
    if pos_enc_layer_type not in POSITIONAL_ENCODING:
        raise ValueError(
            f"pos_enc_layer_type must be one of {', '.join(POSITIONAL_ENCODING)}, or "
            f"none: {pos_enc_layer_type!r}"
        )
    unit = CHANNEL_UNITS[pos_enc_layer_type]
    if output_size % unit != 0:
        raise ValueError(
            f"output_size must be a multiple of {unit} with pos_enc_layer_type: "
            f"{pos_enc_layer_type}, but is {output_size}"
        )
    return POSITIONAL_ENCODING[pos_enc_layer_type](output_size, dropout_rate, max_len)


def build_input_layer(
    input_layer: str | None,
    input_size: int,
    output_size: int,
    dropout_rate: float,
    pos_enc: torch.nn.Module,
    padding_idx: int,
) -> torch.nn.Module:
    """Build what ESPnet's encoders call ``embed``, with the same parameter names.

    Args:
        input_layer: ESPnet's name of the layer; None for features of the encoder's own
            size, or for one linear map, without positional encoding, to that size.
        input_size: Number of features F, or of tokens.
        output_size: Number of channels D.
        dropout_rate: Dropout after a linear input layer.
        pos_enc: Applied to the layer's output (B, T, D).
        padding_idx: Token whose embedding is zero.

    Raises:
        ValueError: If the name is unknown, or input size or token do not fit.
    """
    least = LEAST_FEATURES.get(input_layer or "", 1)
    if input_size < least:
        raise ValueError(
            f"input_layer: {input_layer} needs {least} features or more (frontend_conf:"
            f" n_mels), but there are {input_size}"
        )
    if input_layer in SUBSAMPLING:
        return SUBSAMPLING[input_layer](input_size, output_size, dropout_rate, pos_enc)
    if input_layer == "linear":
        return torch.nn.Sequential(
            torch.nn.Linear(input_size, output_size),
            torch.nn.LayerNorm(output_size),
            torch.nn.Dropout(dropout_rate),
            pos_enc,
        )
    if input_layer == "embed":
        if not -input_size <= padding_idx < input_size:
            raise ValueError(
                f"padding_idx must be one of the {input_size} tokens, but is "
                f"{padding_idx}"
            )
        return torch.nn.Sequential(
            torch.nn.Embedding(input_size, output_size, padding_idx=padding_idx),
            pos_enc,
        )
    if input_layer is None:
        if input_size == output_size:
            return torch.nn.Sequential(pos_enc)
        return torch.nn.Linear(input_size, output_size)
    names = ", ".join([*SUBSAMPLING, "linear", "embed"])
    raise ValueError(f"input_layer must be one of {names}, or null: {input_layer!r}")


def receptive_field(embed: torch.nn.Module) -> tuple[int, int]:
    """Return which input frames an output frame is made of.

    Args:
        embed: The input layer.

    Returns:
        Size and stride: output frame t is made of the input frames from t * stride to
        t * stride + size - 1. Both are 1 if the layer does not subsample.
    """
    size = stride = 1
    for layer in getattr(embed, "conv", ()):  # Only layers that subsample have it.
        if isinstance(layer, (torch.nn.Conv1d, torch.nn.Conv2d)):
            size += (layer.kernel_size[0] - 1) * stride
            stride *= layer.stride[0]
    return size, stride


def subsample(
    embed: torch.nn.Module, xs_pad: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call ESPnet's subsampling layer, at inference in overlapping pieces.

    It has no padding, so the pieces give the very frames of the whole; only the
    convolutions over all frames and channels are never there at once. A compiled or
    exported graph keeps the plain call, as its length is not known, and so does a
    layer with hooks, which the pieces would pass over.

    Args:
        embed: One of ``SUBSAMPLING``.
        xs_pad: Features (B, T, F).
        mask: (B, 1, T), true on real frames.

    Returns:
        Output (B, T', D) and its mask (B, 1, T').
    """
    # A graph that looked at hooks would guard them.
    if is_traced() or has_hooks(embed) or not pieces.is_long(xs_pad.size(1)):
        return embed(xs_pad, mask)
    size, stride = receptive_field(embed)
    frames = (xs_pad.size(1) - size) // stride + 1
    at_once = max(1, pieces.FRAMES_AT_ONCE // stride)
    parts = []
    for first in range(0, frames, at_once):
        last = min(first + at_once, frames) - 1
        piece = xs_pad[:, first * stride : last * stride + size]
        parts.append(embed.out(_convolve(embed.conv, piece)))
    olens = (mask.squeeze(1).sum(1, keepdim=True) - size) // stride + 1
    is_real = torch.arange(frames, device=mask.device) < olens
    return embed.pos_enc(torch.cat(parts, dim=1)), is_real.unsqueeze(1)


def _convolve(conv: torch.nn.Sequential, xs_pad: torch.Tensor) -> torch.Tensor:
    if isinstance(conv[0], torch.nn.Conv1d):
        return conv(xs_pad.transpose(1, 2)).transpose(1, 2)
    return conv(xs_pad.unsqueeze(1)).transpose(1, 2).flatten(2)


def check_lengths(
    embed: torch.nn.Module, xs_pad: torch.Tensor, ilens: torch.Tensor, shortest: int
):
    """Name the first utterance of which subsampling leaves no frame, once in the log.

    As in ESPnet's encoders, it goes on as one of length 0, and only a batch that is too
    short as a whole raises.

    Args:
        embed: The input layer.
        xs_pad: Features (B, T, F).
        ilens: Number of frames of each utterance (B,).
        shortest: The least of them.

    Raises:
        TooShortUttError: If T is too short.
    """
    is_short, limit = check_short_utt(embed, shortest)
    if not is_short:
        return
    words = (
        f"frames and is too short for subsampling (it needs at least {limit} frames)"
    )
    if xs_pad.size(1) < limit:
        raise TooShortUttError(f"has {xs_pad.size(1)} {words}", xs_pad.size(1), limit)
    if embed not in _NAMED:
        _NAMED.add(embed)
        logging.warning(
            "utterance %d of a batch has %d %s: the encoder makes nothing of it. This "
            "is logged once",
            int(ilens.argmin()),
            shortest,
            words,
        )
