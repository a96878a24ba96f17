"""Every encoder, small."""

from functools import partial
from itertools import cycle, product

import pytest
import torch

from espnet_fastformer.encoder.aft_encoder import AFTEncoder
from espnet_fastformer.encoder.fastformer_encoder import FastformerEncoder

BLOCK_TYPES = ("e_branchformer", "branchformer", "conformer", "transformer")
AFT_TYPES = ("full", "local", "simple", "conv")
ENCODERS = {
    "fastformer": FastformerEncoder,
    **{f"aft-{name}": partial(AFTEncoder, aft_type=name) for name in AFT_TYPES},
}
# For tests that take seconds each.
MOST_SLOW = [
    name
    if name in ("fastformer", "aft-conv")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in ENCODERS
]
FEATURES = 20


def in_turn(values: list, *others: list) -> list[tuple]:
    """Combinations of all others, each with the next of the values at its end."""
    return [(*case, x) for case, x in zip(product(*others), cycle(values))]


def build(name: str, **options):
    """An encoder of random weights, in eval mode, whose position biases matter."""
    small = {
        "output_size": 16,
        "attention_heads": 2,
        "cgmlp_linear_units": 16,
        "cgmlp_conv_kernel": 7,
        "linear_units": 16,
        "num_blocks": 2,
    }
    encoder = ENCODERS[name](FEATURES, **(small | options)).eval()
    for key, parameter in encoder.named_parameters():
        if "position_bias" in key or "filter" in key:
            torch.nn.init.normal_(parameter, std=0.5)
    return encoder


def features(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (B, T, F), zero on padding as ESPnet's, and lengths."""
    lengths = torch.tensor(lengths)
    xs_pad = torch.randn(len(lengths), int(lengths.max()), FEATURES)
    is_real = torch.arange(xs_pad.size(1)) < lengths[:, None]
    return xs_pad * is_real.unsqueeze(-1), lengths
