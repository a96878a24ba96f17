"""The encoder with a global mixer in some blocks, or in none."""

import pytest
import torch
from espnet2.tasks import asr
from espnet3.systems.esp2_asr import task

from benchmarks.study.mixed_encoder import MixedEncoder, NoMixer, register
from espnet_fastformer import AFTEncoder, FastformerEncoder
from espnet_fastformer.cpu.fastformer import FoldedFastSelfAttention
from espnet_fastformer.layers.aft import AFTConv

OPTIONS = {
    "input_size": 16,
    "output_size": 16,
    "num_blocks": 2,
    "cgmlp_linear_units": 16,
    "cgmlp_conv_kernel": 3,
    "merge_conv_kernel": 5,
    "input_layer": "linear",
    "use_ffn": True,
    "linear_units": 16,
}
# Both convolutions of both blocks, on each side.
REACH = 2 * (1 + 2)
FRAMES, CHANGED = 40, 20


@pytest.mark.parametrize(
    ("mixers", "first", "last"),
    [
        (["none"], CHANGED - REACH, CHANGED + REACH),
        (["none", "fastformer"], 0, FRAMES - 1),
        (["aft", "none"], 0, FRAMES - 1),
    ],
)
def test_how_far_a_frame_reaches(mixers, first, last):
    torch.manual_seed(0)
    encoder = MixedEncoder(mixers=mixers, **OPTIONS).eval()
    feats = torch.randn(1, FRAMES, 16)
    other = feats.clone()
    other[:, CHANGED] += 1
    lengths = torch.tensor([FRAMES])
    outputs = [encoder(x, lengths)[0] for x in (feats, other)]
    different = (outputs[0] != outputs[1]).any(dim=-1)
    assert different.nonzero()[:, 1].tolist() == list(range(first, last + 1))


def test_mixers_take_turns():
    mixers = ["none", "fastformer", "aft"]
    encoder = MixedEncoder(
        mixers=mixers, aft_type="conv", aft_kernel_size=7, **OPTIONS | {"num_blocks": 5}
    )
    kinds = [type(block.attn) for block in encoder.encoders]
    assert kinds == [
        NoMixer,
        FoldedFastSelfAttention,
        AFTConv,
        NoMixer,
        FoldedFastSelfAttention,
    ]


@pytest.mark.parametrize(
    ("mixer", "encoder_class", "options"),
    [
        ("fastformer", FastformerEncoder, {}),
        ("aft", AFTEncoder, {"aft_type": "conv", "aft_kernel_size": 7}),
    ],
)
def test_one_mixer_is_the_encoder_of_that_name(mixer, encoder_class, options):
    mixed = MixedEncoder(mixers=[mixer], **options, **OPTIONS).eval()
    plain = encoder_class(**options, **OPTIONS).eval()
    plain.load_state_dict(mixed.state_dict())
    feats, lengths = torch.randn(2, FRAMES, 16), torch.tensor([FRAMES, FRAMES // 2])
    for ours, theirs in zip(mixed(feats, lengths), plain(feats, lengths), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("mixers", [[], ["lstm"], "aft"])
def test_unknown_mixer_is_named(mixers):
    with pytest.raises(ValueError, match="mixers must be a list of aft"):
        MixedEncoder(mixers=mixers, **OPTIONS)


def test_espnet_knows_it():
    register()
    for choices in (asr.encoder_choices, task.encoder_choices):
        assert choices.get_class("mixed") is MixedEncoder
