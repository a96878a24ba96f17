"""The encoder without a global mixer."""

import torch
from espnet2.tasks import asr
from espnet3.systems.esp2_asr import task
from src.local_encoder import LocalEncoder

from espnet_fastformer import FastformerEncoder

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


def changed_frames(encoder_class) -> list[int]:
    torch.manual_seed(0)
    encoder = encoder_class(**OPTIONS).eval()
    feats = torch.randn(1, FRAMES, 16)
    other = feats.clone()
    other[:, CHANGED] += 1
    lengths = torch.tensor([FRAMES])
    outputs = [encoder(x, lengths)[0] for x in (feats, other)]
    different = (outputs[0] != outputs[1]).any(dim=-1)
    return different.nonzero()[:, 1].tolist()


def test_a_frame_reaches_as_far_as_the_convolutions():
    expected = list(range(CHANGED - REACH, CHANGED + REACH + 1))
    assert changed_frames(LocalEncoder) == expected


def test_a_global_mixer_reaches_everywhere():
    assert changed_frames(FastformerEncoder) == list(range(FRAMES))


def test_espnet_knows_it():
    for choices in (asr.encoder_choices, task.encoder_choices):
        assert choices.get_class("local") is LocalEncoder
