"""Whatever a configuration says, the encoder learns, or an error names the option."""

import argparse
import copy
import inspect

import pytest
import torch
from espnet2.tasks.asr import ASRTask
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from typeguard import TypeCheckError

from espnet_fastformer import register
from espnet_fastformer.encoder.aft_encoder import AFTEncoder
from espnet_fastformer.encoder.input_layer import LEAST_FEATURES, SUBSAMPLING
from tests.encoder.encoders import AFT_TYPES, BLOCK_TYPES, FEATURES, build

register()

OPTIONS = [name for name in inspect.signature(AFTEncoder).parameters][1:]
SMALL = {
    "output_size": 16,
    "attention_heads": 2,
    "cgmlp_linear_units": 16,
    "cgmlp_conv_kernel": 3,
    "linear_units": 16,
    "num_blocks": 2,
    "use_ffn": True,
    "max_pos_emb_len": 100,
}
WORDS = [
    *BLOCK_TYPES,
    *AFT_TYPES,
    *SUBSAMPLING,
    *("linear", "embed", "abs_pos", "scaled_abs_pos", "conv", "rel_pos", "none"),
    *("offset", "factorized", "dense", "concat", "learned_ave", "fixed_ave"),
    *("swish", "relu", "identity", "selfattn", "latest", "", "2", "0.1", "true"),
]
# The sizes that a machine has memory for.
integers = st.integers(-2, 40)
values = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    st.floats(),
    st.floats(0, 1),
    st.sampled_from(WORDS),
    st.lists(st.one_of(integers, st.floats(0, 1), st.sampled_from(WORDS)), max_size=3),
    st.dictionaries(st.sampled_from(WORDS), integers, max_size=1),
)


@pytest.fixture(scope="module")
def espnet_args() -> argparse.Namespace:
    args = ASRTask.get_parser().parse_args([])
    args.token_list = ["<blank>", "<unk>", *"ABCDEFGH", "<sos/eos>"]
    args.frontend_conf = {"n_fft": 512, "hop_length": 160, "n_mels": FEATURES}
    args.model_conf = {"ctc_weight": 1.0}
    return args


def learn(espnet_args: argparse.Namespace, encoder: str, conf) -> None:
    """Make the gradient of one batch, and check that it is one."""
    args = copy.copy(espnet_args)
    args.encoder, args.encoder_conf = encoder, conf
    torch.manual_seed(0)
    model = ASRTask.build_model(args)
    loss, _, _ = model(
        speech=torch.randn(2, 6400),
        speech_lengths=torch.tensor([6400, 5000]),
        text=torch.tensor([[2, 3], [4, -1]]),
        text_lengths=torch.tensor([2, 1]),
    )
    assert loss.isfinite()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("encoder", ["fastformer", "aft"])
@settings(derandomize=True, max_examples=75, deadline=None, database=None)
@given(data=st.data())
def test_any_options(encoder, data, espnet_args):
    names = [n for n in OPTIONS if encoder == "aft" or not n.startswith("aft_")]
    given = data.draw(
        st.dictionaries(st.sampled_from(names), values, min_size=1, max_size=3)
    )
    conf = SMALL | given
    if data.draw(st.booleans()):
        conf = OmegaConf.create(conf)
    try:
        learn(espnet_args, encoder, conf)
    except (TypeCheckError, ValueError) as error:
        assert any(name in str(error) for name in given), error


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_alone(name, espnet_args):
    encoder = "aft" if name.startswith("aft_") else "fastformer"
    for value in (None, True, 0, -1, 3, 2.5, float("nan"), "2", "x", [], [1, "x"]):
        try:
            learn(espnet_args, encoder, SMALL | {name: value})
        except (TypeCheckError, ValueError) as error:
            assert name in str(error), (value, error)


@pytest.mark.parametrize("input_layer, least", LEAST_FEATURES.items())
def test_features_that_subsampling_needs(input_layer, least):
    options = {"input_layer": input_layer, "output_size": 16}
    encoder = AFTEncoder(least, num_blocks=1, **options)
    lengths = torch.tensor([40])
    assert encoder(torch.randn(1, 40, least), lengths)[0].isfinite().all()
    with pytest.raises(ValueError, match=f"{input_layer} needs {least} features"):
        AFTEncoder(least - 1, num_blocks=1, **options)


def test_tokens_and_features_are_not_mixed_up():
    lengths = torch.tensor([40])
    with pytest.raises(ValueError, match="embed takes tokens, but the input is feat"):
        build("fastformer", input_layer="embed")(torch.randn(1, 40, FEATURES), lengths)
    tokens = torch.ones(1, 40, dtype=torch.long)
    for input_layer in ("linear", "conv2d", None):
        with pytest.raises(ValueError, match="the input is tokens, which input_layer"):
            build("fastformer", input_layer=input_layer)(tokens, lengths)
