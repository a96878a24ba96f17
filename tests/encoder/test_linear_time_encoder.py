import copy
import logging

import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoder
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from espnet2.legacy.nets.pytorch_backend.transformer.subsampling import TooShortUttError
from espnet2.torch_utils.initialize import initialize
from espnet2.utils.get_default_kwargs import get_default_kwargs
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from espnet_fastformer.encoder.aft_encoder import AFTEncoder
from espnet_fastformer.encoder.fastformer_encoder import FastformerEncoder
from tests.layers.memory import allocated

from .encoders import BLOCK_TYPES, ENCODERS, FEATURES, build, features, in_turn

every_encoder = pytest.mark.parametrize("name", ENCODERS)
every_block = pytest.mark.parametrize("block_type", BLOCK_TYPES)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "block_type, espnet_encoder, options",
    [
        (
            "e_branchformer",
            EBranchformerEncoder,
            {"use_ffn": True, "macaron_ffn": True, "interctc_layer_idx": [1]},
        ),
        (
            "e_branchformer",
            EBranchformerEncoder,
            {"input_layer": None, "qk_norm": True, "use_sdpa": True},
        ),
        ("branchformer", BranchformerEncoder, {"merge_method": "learned_ave"}),
        ("branchformer", BranchformerEncoder, {"input_layer": None}),
        (
            "branchformer",
            BranchformerEncoder,
            {"merge_method": "fixed_ave", "cgmlp_weight": [1.0, 0.3, 0.0]},
        ),
    ],
)
@pytest.mark.parametrize("pos_enc_layer_type", ["abs_pos", "scaled_abs_pos"])
@pytest.mark.parametrize("features_size", [FEATURES, 32])
def test_espnet_weights_load_and_give_its_output(
    block_type, espnet_encoder, options, pos_enc_layer_type, features_size
):
    conf = {
        "output_size": 32,
        "num_blocks": 3,
        "cgmlp_linear_units": 64,
        "attention_layer_type": "fast_selfattn",
        "pos_enc_layer_type": pos_enc_layer_type,
        "rel_pos_type": "latest",
        **options,
    }
    theirs = espnet_encoder(features_size, **conf).eval()
    ours = FastformerEncoder(features_size, block_type=block_type, **conf).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)

    lengths = torch.tensor([163, 120, 61])
    xs_pad = torch.randn(3, 163, features_size)
    results = []
    for encoder in (theirs, ours):
        x = xs_pad.clone().requires_grad_()
        out, olens, _ = encoder(x, lengths)
        outputs = [out]
        if isinstance(out, tuple):
            outputs = [out[0], *(hidden for _, hidden in out[1])]
        sum(output.sin().sum() for output in outputs).backward()
        results.append([*outputs, olens, x.grad])
    for actual, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name, block_type, pos_enc_layer_type",
    in_turn(["abs_pos", "conv", None], ENCODERS, BLOCK_TYPES),
)
def test_output_does_not_depend_on_batch_neighbours(
    name, block_type, pos_enc_layer_type
):
    encoder = build(name, block_type=block_type, pos_enc_layer_type=pos_enc_layer_type)
    xs_pad, lengths = features([163, 120, 331])
    together, olens, _ = encoder(xs_pad, lengths)
    for row, length in enumerate(lengths):
        alone, olen, _ = encoder(xs_pad[row : row + 1, :length], lengths[row : row + 1])
        assert olens[row] == olen[0]
        torch.testing.assert_close(
            together[row, : olen[0]], alone[0], rtol=1e-5, atol=1e-5
        )


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(15, 400), min_size=1, max_size=4),
    padding=st.integers(0, 200),
    name=st.sampled_from(sorted(ENCODERS)),
    input_layer=st.sampled_from(["conv2d", "conv2d6", "conv2d8", "conv1d3", "linear"]),
)
def test_padding_is_invisible(lengths, padding, name, input_layer):
    encoder = build(name, input_layer=input_layer)
    xs_pad, lengths = features(lengths)
    expected, olens, _ = encoder(xs_pad, lengths)
    noise = 100 * torch.randn(len(lengths), padding, FEATURES)
    actual, more_olens, _ = encoder(torch.cat([xs_pad, noise], dim=1), lengths)
    assert torch.equal(olens, more_olens)
    for row, olen in enumerate(olens):
        torch.testing.assert_close(
            actual[row, :olen], expected[row, :olen], rtol=1e-5, atol=1e-5
        )


@every_encoder
def test_masks_argument_is_true_on_padding(name):
    encoder = build(name)
    xs_pad, lengths = features([163, 99])
    padding = torch.arange(163) >= lengths[:, None]
    expected, expected_olens, _ = encoder(xs_pad, lengths)
    actual, olens, _ = encoder(xs_pad, lengths, masks=padding)
    assert torch.equal(actual, expected)
    assert torch.equal(olens, expected_olens)


@every_encoder
@every_block
def test_intermediate_outputs(name, block_type):
    encoder = build(
        name, num_blocks=4, block_type=block_type, interctc_layer_idx=[1, 3]
    )
    xs_pad, lengths = features([80, 50])
    (out, hidden), _, _ = encoder(xs_pad, lengths, return_all_hs=True)
    assert len(hidden) == 4
    torch.testing.assert_close(out, encoder.after_norm(hidden[-1]))

    (again, intermediate), _, _ = encoder(xs_pad, lengths)
    assert torch.equal(out, again)
    for number, x in intermediate:
        # A Conformer's or Transformer's are normalised for the loss, as ESPnet's are.
        is_normal = block_type in ("e_branchformer", "branchformer")
        of_block = hidden[number - 1]
        expected = of_block if is_normal else encoder.after_norm(of_block)
        torch.testing.assert_close(x, expected)
    assert [number for number, _ in intermediate] == [1, 3]

    (shallow, hidden), _, _ = encoder(xs_pad, lengths, max_layer=2, return_all_hs=True)
    assert len(hidden) == 2
    torch.testing.assert_close(shallow, encoder.after_norm(hidden[-1]))


@every_encoder
def test_self_conditioning_adds_posteriors(name):
    encoder = build(name, interctc_layer_idx=[1], interctc_use_conditioning=True)
    ctc = CTC(odim=5, encoder_output_size=16)
    encoder.conditioning_layer = torch.nn.Linear(5, 16)
    xs_pad, lengths = features([80, 50])
    (out, [(_, hidden)]), _, _ = encoder(xs_pad, lengths, ctc=ctc)

    x = hidden + encoder.conditioning_layer(ctc.softmax(hidden))
    mask = torch.arange(hidden.size(1)) < torch.tensor([19, 11])[:, None, None]
    x, _ = encoder.encoders[1](x, mask)
    torch.testing.assert_close(out, encoder.after_norm(x))

    with pytest.raises(ValueError, match="needs ctc"):
        encoder(xs_pad, lengths)


@every_block
def test_layer_drop_keeps_every_intermediate_output(block_type):
    encoder = build(
        "fastformer",
        block_type=block_type,
        num_blocks=3,
        interctc_layer_idx=[1, 2],
        layer_drop_rate=1.0,
        pos_enc_layer_type="none",
        dropout_rate=0.0,
    ).train()
    xs_pad, lengths = features([80, 50])
    (out, intermediate), olens, _ = encoder(xs_pad, lengths)
    assert [number for number, _ in intermediate] == [1, 2]
    # With all blocks dropped, what went in comes out.
    embedded, _ = encoder.embed(xs_pad, torch.ones(2, 1, 80, dtype=torch.bool))
    torch.testing.assert_close(out, encoder.after_norm(embedded))
    (_, hidden), _, _ = encoder(xs_pad, lengths, return_all_hs=True)
    assert len(hidden) == 3
    assert olens.tolist() == [19, 11]


def test_layer_drop_happens_at_its_rate_in_training_alone():
    encoder = build("aft-simple", layer_drop_rate=0.5, dropout_rate=0.0)
    xs_pad, lengths = features([40])
    assert torch.equal(encoder(xs_pad, lengths)[0], encoder(xs_pad, lengths)[0])
    encoder.train()
    calls = []
    for block in encoder.encoders:
        block.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(200):
        encoder(xs_pad, lengths)
    # 400 draws of probability one half: six standard deviations are 60.
    assert 140 < len(calls) < 260


@every_encoder
def test_gradient_checkpointing_changes_nothing(name):
    xs_pad, lengths = features([80, 50])
    plain = build(name)
    saving = build(name, gradient_checkpoint_layers=[0, 1, 2])
    saving.load_state_dict(plain.state_dict())
    calls = {plain: 0, saving: 0}
    gradients = []
    for encoder in calls:
        for block in encoder.train().encoders:
            # Before the call, which checkpointing breaks off once it has all it needs.
            block.register_forward_pre_hook(
                lambda *_, encoder=encoder: calls.update({encoder: calls[encoder] + 1})
            )
        torch.manual_seed(0)
        out, _, _ = encoder(xs_pad, lengths)
        out.sin().sum().backward()
        gradients.append([p.grad for p in encoder.parameters()])
    assert calls[saving] == 2 * calls[plain] > 0
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "input_layer, least",
    [
        ("conv1d1", 5),
        ("conv1d2", 5),
        ("conv1d3", 7),
        ("conv2d", 7),
        ("conv2d1", 5),
        ("conv2d2", 7),
        ("conv2d6", 11),
        ("conv2d8", 15),
    ],
)
def test_short_utterance_in_a_long_batch(input_layer, least):
    encoder = build("fastformer", input_layer=input_layer)
    for length in (least, least - 1):
        _, olens, _ = encoder(*features([100, length]))
        assert olens[1] == (length == least)
    with pytest.raises(TooShortUttError, match=f"has {least - 1} frames") as error:
        encoder(*features([least - 2, least - 1]))
    assert (error.value.actual_size, error.value.limit) == (least - 1, least)


@every_encoder
@every_block
def test_nothing_is_learned_from_a_short_utterance(name, block_type):
    # A Conformer's batch normalization is ESPnet's, which counts all padding.
    options = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
    encoder = build(name, block_type=block_type, **options)
    encoder.train(block_type != "conformer")
    ctc = CTC(5, 16)
    xs_pad, lengths = features([100, 4, 70])
    texts, text_lengths = (
        torch.tensor([[1, 2], [3, 4], [4, 1]]),
        torch.tensor([2, 2, 2]),
    )

    def learn(rows, size):
        encoder.zero_grad()
        out, olens, _ = encoder(xs_pad[rows], lengths[rows])
        loss = ctc(out, olens, texts[rows], text_lengths[rows]) * size
        loss.backward()
        grads = [p.grad for p in encoder.parameters() if p.grad is not None]
        return out[[0, -1]], loss, torch.cat([grad.flatten() for grad in grads])

    rows = torch.tensor([0, 1, 2])
    for actual, expected in zip(learn(rows, 3), learn(rows[[0, 2]], 2), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_short_utterance_is_named_once(caplog):
    encoder = build("aft-conv")
    for _ in range(2):
        encoder(*features([100, 4]))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "utterance 1 of a batch has 4 frames" in record.getMessage()
    assert "needs at least 7 frames" in record.getMessage()


def test_memory_is_linear_in_time():
    for name in ("fastformer", "aft-local", "aft-simple", "aft-conv"):
        encoder = build(name)

        def total(frames, encoder=encoder):
            xs_pad, lengths = features([frames, frames // 2])
            encoder.embed.pos_enc.extend_pe(torch.zeros(1, 4096, 1))
            with torch.no_grad():
                return allocated(lambda: encoder(xs_pad, lengths)).total

        assert total(8000) < 2.1 * total(4000), name


@every_encoder
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    encoder = build(name, output_size=32)
    xs_pad, lengths = features([163, 120])
    expected, olens, _ = encoder(xs_pad, lengths)
    for actual in (
        copy.deepcopy(encoder).to(dtype)(xs_pad.to(dtype), lengths)[0],
        autocast(encoder, dtype, xs_pad, lengths)[0],
    ):
        for row, olen in enumerate(olens):
            torch.testing.assert_close(
                actual[row, :olen].float(), expected[row, :olen], rtol=0.1, atol=0.1
            )


def autocast(encoder, dtype, *args):
    with torch.autocast("cpu", dtype):
        return encoder(*args)


@every_encoder
def test_gradients_in_half_precision(name):
    encoder = build(name, output_size=32).train()
    out, _, _ = autocast(encoder, torch.bfloat16, *features([163, 120]))
    out.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


@every_encoder
def test_init_option_keeps_position_biases(name):
    encoder = build(name)
    initialize(encoder, "xavier_uniform")
    found = 0
    for module in encoder.modules():
        parameters = dict(module.named_parameters(recurse=False))
        if "filter_scale" in parameters:
            assert not parameters["filter_scale"].any()
            assert not parameters["filter_shift"].any()
            found += 1
        elif type(module).__name__ == "FactorizedBias":
            for factor in parameters.values():
                assert 0.005 < factor.std() < 0.02
            found += 1
        elif "position_bias" in parameters:
            assert parameters["position_bias"].abs().max() < 0.1
            found += 1
        elif "query_att" in dict(module.named_children()):
            assert 0.01 < module.query.weight.std() < 0.03
            found += 1
    assert found == (0 if name == "aft-simple" else 2)


def test_omegaconf_lists_are_lists():
    conf = OmegaConf.create(
        {
            "num_blocks": 3,
            "block_type": "branchformer",
            "interctc_layer_idx": [1, 2],
            "gradient_checkpoint_layers": [0, 1],
            "stochastic_depth_rate": [0.1, 0.0, 0],
            "cgmlp_weight": [0.1, 0.2, 0.3],
            "merge_method": "fixed_ave",
        }
    )
    encoder = build("fastformer", **conf)
    assert encoder.interctc_layer_idx == [1, 2]
    assert [b.cgmlp_weight for b in encoder.encoders] == [0.1, 0.2, 0.3]
    xs_pad, lengths = features([40])
    encoder.train()(xs_pad, lengths)


@pytest.mark.parametrize("encoder", [FastformerEncoder, AFTEncoder])
def test_print_config_shows_every_option_with_e_branchformers_default(encoder):
    theirs = get_default_kwargs(EBranchformerEncoder)
    ours = get_default_kwargs(encoder)
    del theirs["attention_layer_type"], theirs["pos_enc_layer_type"]
    assert ours["pos_enc_layer_type"] == "abs_pos"
    assert ours | theirs == ours
    # What is printed is what the constructor takes.
    encoder(FEATURES, **(ours | {"output_size": 16, "num_blocks": 1}))


@pytest.mark.parametrize("encoder", [FastformerEncoder, AFTEncoder])
@pytest.mark.parametrize(
    "options, words",
    [
        ({"block_type": "dummy"}, "block_type must be one of"),
        ({"input_layer": "dummy"}, "input_layer must be one of"),
        ({"rel_pos_type": "dummy"}, "rel_pos_type must be"),
        ({"pos_enc_layer_type": "dummy"}, "pos_enc_layer_type must be one of"),
        ({"attention_layer_type": "dummy"}, "unknown attention_layer_type"),
        ({"positionwise_layer_type": "dummy"}, "positionwise_layer_type must be"),
        ({"gate_activation": "dummy"}, "gate_activation is unknown"),
        (
            {"use_ffn": True, "ffn_activation_type": "dummy"},
            "ffn_activation_type is unknown",
        ),
        ({"num_blocks": 0}, "num_blocks must be at least 1"),
        ({"cgmlp_conv_kernel": 4}, "cgmlp_conv_kernel must be odd"),
        ({"merge_conv_kernel": 4}, "merge_conv_kernel must be odd"),
        ({"cnn_module_kernel": 4}, "cnn_module_kernel must be odd"),
        ({"interctc_layer_idx": [2]}, "interctc_layer_idx must be whole numbers"),
        ({"interctc_layer_idx": [0]}, "interctc_layer_idx must be whole numbers"),
        ({"gradient_checkpoint_layers": [3]}, "gradient_checkpoint_layers must be"),
        ({"merge_method": "concat"}, "merge_method is an option of block_type: branch"),
        ({"use_attn": True}, "use_attn is an option of block_type: branchformer"),
        ({"stochastic_depth_rate": 0.1}, "stochastic_depth_rate is no option"),
        (
            {"block_type": "branchformer", "merge_method": "dummy"},
            "merge_method must be one of",
        ),
        (
            {"block_type": "branchformer", "use_attn": False, "use_cgmlp": False},
            "use_attn and use_cgmlp must not both",
        ),
        (
            {"block_type": "branchformer", "cgmlp_weight": [0.1] * 3},
            "cgmlp_weight must be one number or num_blocks",
        ),
        (
            {"block_type": "branchformer", "attn_branch_drop_rate": [0.1]},
            "attn_branch_drop_rate must be one number or num_blocks",
        ),
        (
            {"block_type": "conformer", "stochastic_depth_rate": 1.0},
            "stochastic_depth_rate must be below 1",
        ),
        (
            {"block_type": "conformer", "stochastic_depth_rate": [0.1] * 3},
            "stochastic_depth_rate must be one number or num_blocks",
        ),
    ],
)
def test_bad_option_is_named(encoder, options, words):
    with pytest.raises(ValueError, match=words):
        encoder(FEATURES, **({"output_size": 16, "num_blocks": 2} | options))


@pytest.mark.parametrize("encoder", [FastformerEncoder, AFTEncoder])
def test_misspelt_option_is_named(encoder):
    with pytest.raises(TypeError, match="num_block"):
        encoder(FEATURES, num_block=2)


def test_relative_positions_are_replaced_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        encoder = build(
            "fastformer",
            attention_layer_type="rel_selfattn",
            pos_enc_layer_type="rel_pos",
        )
    assert "rel_pos belongs to self-attention; abs_pos is used" in caplog.text
    assert "rel_selfattn is replaced by the mixer of FastformerEncoder" in caplog.text
    xs_pad, lengths = features([40])
    same = build("fastformer")
    same.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder(xs_pad, lengths)[0], same(xs_pad, lengths)[0])


def test_own_attention_is_no_cause_for_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        build("fastformer", attention_layer_type="fast_selfattn")
    assert not caplog.records


def test_aft_type_is_checked():
    with pytest.raises(ValueError, match="aft_type must be full, local, simple or"):
        AFTEncoder(FEATURES, aft_type="dummy")
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        AFTEncoder(FEATURES, aft_type="conv", aft_kernel_size=4)
    with pytest.raises(ValueError, match="bias must be offset or factorized"):
        AFTEncoder(FEATURES, aft_type="local", aft_bias="dense")


def test_output_size():
    assert build("fastformer", output_size=32).output_size() == 32
