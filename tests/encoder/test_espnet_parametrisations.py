"""The option values that ESPnet's tests of its encoders run through, on ours.

Each combination comes with one input layer and encoder, in turn, so that every two
values meet.
"""

from collections.abc import Iterator
from itertools import cycle, product

import pytest
import torch
from espnet2.asr.ctc import CTC

from tests.encoder.encoders import ENCODERS, FEATURES, build

LAYERS = ["linear", "conv2d", "conv2d2", "conv2d6", "conv2d8", "embed"]
BRANCHFORMER_LAYERS = [*LAYERS, "conv2d1"]
E_BRANCHFORMER_LAYERS = [*BRANCHFORMER_LAYERS, "conv1d1", "conv1d2", "conv1d3"]
INTERCTC = [([], False), ([1], False), ([1], True)]


def forward_backward(name: str, input_layer: str, **options):
    encoder = build(name, output_size=2, input_layer=input_layer, **options).train()
    if input_layer == "embed":
        x = torch.randint(0, 10, [2, 32])
    else:
        x = torch.randn(2, 32, FEATURES, requires_grad=True)
    x_lens = torch.LongTensor([32, 28])
    if encoder.interctc_layer_idx:
        encoder.conditioning_layer = torch.nn.Linear(2, 2)
    y, olens, _ = encoder(x, x_lens, ctc=CTC(odim=2, encoder_output_size=2))
    if encoder.interctc_layer_idx:
        y, intermediate = y
        assert [index for index, _ in intermediate] == encoder.interctc_layer_idx
    assert y.shape == (2, olens.max(), 2)
    y.sum().backward()
    for name, parameter in encoder.named_parameters():
        # A dropped block, or branch, has no gradient.
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def of_layer(input_layer: str, pairs: Iterator, *values: list) -> Iterator:
    """Encoders and combinations of one layer, when all take their pairs in turn."""
    for (layer, name), combination in zip(pairs, product(*values), strict=False):
        if layer == input_layer:
            yield name, *combination


@pytest.mark.parametrize("input_layer", E_BRANCHFORMER_LAYERS)
def test_e_branchformer(input_layer):
    for (
        name,
        (interctc_layer_idx, interctc_use_conditioning),
        layer_drop_rate,
        (use_linear_after_conv, max_pos_emb_len),
        use_ffn,
        macaron_ffn,
        linear_units,
        merge_conv_kernel,
    ) in of_layer(
        input_layer,
        cycle(product(E_BRANCHFORMER_LAYERS, ENCODERS)),
        INTERCTC,
        [0.0, 0.1],
        [(True, 128), (False, 5000)],
        [True, False],
        [True, False],
        [1024, 2048],
        [3, 31],
    ):
        forward_backward(
            name,
            input_layer,
            rel_pos_type="legacy",
            pos_enc_layer_type="abs_pos",
            cgmlp_linear_units=4,
            cgmlp_conv_kernel=3,
            use_linear_after_conv=use_linear_after_conv,
            gate_activation="identity",
            max_pos_emb_len=max_pos_emb_len,
            use_ffn=use_ffn,
            macaron_ffn=macaron_ffn,
            linear_units=linear_units,
            merge_conv_kernel=merge_conv_kernel,
            layer_drop_rate=layer_drop_rate,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
        )


@pytest.mark.parametrize("input_layer", BRANCHFORMER_LAYERS)
def test_branchformer(input_layer):
    for (
        name,
        (merge_method, cgmlp_weight, attn_branch_drop_rate),
        use_linear_after_conv,
        stochastic_depth_rate,
    ) in of_layer(
        input_layer,
        zip(cycle(BRANCHFORMER_LAYERS), cycle(ENCODERS)),
        [
            ("concat", 0.5, 0.0),
            ("learned_ave", 0.5, 0.0),
            ("learned_ave", 0.5, 0.1),
            ("learned_ave", 0.5, [0.1, 0.1]),
            ("fixed_ave", 0.5, 0.0),
            ("fixed_ave", [0.5, 0.5], 0.0),
            ("fixed_ave", 0.0, 0.0),
            ("fixed_ave", 1.0, 0.0),
        ],
        [True, False],
        [0.0, 0, 0.1, [0.1, 0.1]],
    ):
        forward_backward(
            name,
            input_layer,
            block_type="branchformer",
            rel_pos_type="legacy",
            pos_enc_layer_type="abs_pos",
            cgmlp_linear_units=4,
            cgmlp_conv_kernel=3,
            use_attn=True,
            use_cgmlp=True,
            use_linear_after_conv=use_linear_after_conv,
            merge_method=merge_method,
            cgmlp_weight=cgmlp_weight,
            attn_branch_drop_rate=attn_branch_drop_rate,
            stochastic_depth_rate=stochastic_depth_rate,
        )


@pytest.mark.parametrize("input_layer", LAYERS)
def test_conformer_and_transformer(input_layer):
    for (
        name,
        block_type,
        (interctc_layer_idx, interctc_use_conditioning),
        pos_enc,
        macaron_ffn,
        stochastic_depth_rate,
        layer_drop_rate,
    ) in of_layer(
        input_layer,
        cycle(product(LAYERS, ENCODERS)),
        ["conformer", "transformer"],
        INTERCTC,
        ["abs_pos", "scaled_abs_pos", "none"],
        [True, False],
        [0.0, 0.1, [0.1, 0.1]],
        [0.0, 0.1],
    ):
        forward_backward(
            name,
            input_layer,
            block_type=block_type,
            pos_enc_layer_type=pos_enc,
            macaron_ffn=macaron_ffn,
            stochastic_depth_rate=stochastic_depth_rate,
            layer_drop_rate=layer_drop_rate,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
        )
