"""Graphs without breaks, and no compilation for each length."""

import copy
import shutil

import pytest
import torch
from espnet2.asr.ctc import CTC
from torch._dynamo.testing import CompileCounterWithBackend

from tests.encoder.encoders import BLOCK_TYPES, MOST_SLOW, build, features

# Lengths for which the layers compute in other ways, and others like them, one of
# which is too short for a frame.
LENGTHS = ([40, 39], [163, 120], [300, 61], [600, 400], [2100, 1500])
OTHER_LENGTHS = ([47, 20, 20], [150, 3], [280, 200, 280], [640, 25], [1100, 900])

SMALL = {"aft-full": {"aft_max_len": 100}}

needs_compiler = pytest.mark.skipif(
    not shutil.which("g++"), reason="needs a C++ compiler"
)
every_encoder = pytest.mark.parametrize("name", MOST_SLOW)


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(encoder, backend="eager"):
    return torch.compile(encoder, backend=backend, fullgraph=True, dynamic=True)


@torch.no_grad()
def check_inference(encoder, other_lengths=OTHER_LENGTHS, **options):
    call = compiled(encoder)
    for batch in (*LENGTHS, *other_lengths):
        inputs = features(batch)
        expected, olens, _ = encoder(*inputs, **options)
        is_new = batch in LENGTHS
        with torch.compiler.set_stance("default" if is_new else "fail_on_recompile"):
            actual, actual_olens, _ = call(*inputs, **options)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(actual_olens, olens)


# The first, fastformer, is in test_conditioning.
@pytest.mark.parametrize("name", MOST_SLOW[1:])
def test_inference(name):
    check_inference(build(name, **SMALL.get(name, {}), num_blocks=1))


@pytest.mark.slow
@pytest.mark.parametrize("block_type", BLOCK_TYPES[1:])
def test_blocks(block_type):
    check_inference(build("fastformer", block_type=block_type, num_blocks=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"pos_enc_layer_type": "scaled_abs_pos", "input_layer": "conv2d6"},
        {"pos_enc_layer_type": "conv", "input_layer": "linear"},
        {"input_layer": "conv1d3", "use_ffn": True, "macaron_ffn": True},
    ],
)
def test_options(options):
    check_inference(build("aft-simple", num_blocks=1, **options))


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["offset", "factorized"])
def test_wide_window(bias):
    encoder = build("aft-local", aft_window_size=100, aft_bias=bias, num_blocks=1)
    # The last would be three blocks of such a window.
    check_inference(encoder, OTHER_LENGTHS[:-1])


def test_conditioning():
    encoder = build(
        "fastformer", interctc_layer_idx=[1], interctc_use_conditioning=True
    )
    ctc = CTC(5, 16)
    encoder.conditioning_layer = torch.nn.Linear(5, 16)
    check_inference(encoder, ctc=ctc.eval())


@pytest.mark.parametrize(
    "name, options",
    [
        pytest.param("aft-full", {}, marks=pytest.mark.slow),
        pytest.param("aft-local", {}, marks=pytest.mark.slow),
        ("fastformer", {"layer_drop_rate": 0.5, "gradient_checkpoint_layers": [0, 1]}),
    ],
)
def test_training(name, options):
    encoder = build(name, num_blocks=1, attention_dropout_rate=0.1, **options)
    call = compiled(encoder.train(), "aot_eager")
    for batch in (*LENGTHS, *OTHER_LENGTHS):
        encoder.zero_grad()
        is_new = batch in LENGTHS
        with torch.compiler.set_stance("default" if is_new else "fail_on_recompile"):
            out, *_ = call(*features(batch))
        out.sin().sum().backward()
        assert all(p.grad.isfinite().all() for p in encoder.parameters())


@every_encoder
def test_gradients_without_dropout(name):
    encoder = build(
        name,
        num_blocks=1,
        dropout_rate=0.0,
        positional_dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    encoder.train()
    call = compiled(encoder, "aot_eager")
    inputs = features([163, 120])
    gradients = []
    for forward in (encoder, call):
        encoder.zero_grad()
        out, *_ = forward(*inputs)
        out.sin().sum().backward()
        gradients.append([p.grad.clone() for p in encoder.parameters()])
    for actual, expected in zip(*reversed(gradients), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_layer_drop_skips_some_blocks():
    options = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
    encoder = build("fastformer", layer_drop_rate=0.5, **options).train()
    call = compiled(encoder)
    inputs = features([163, 120])
    outputs = [call(*inputs)[0] for _ in range(30)]
    kinds = {round(out.double().abs().sum().item(), 3) for out in outputs}
    assert len(kinds) == 4  # both, either, or none of two blocks


WITHOUT_DROPOUT = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}


@pytest.fixture
def counter():
    """Compiles what has `compile: true` in seconds, and counts."""
    counter = CompileCounterWithBackend("aot_eager")
    with torch.compiler.set_stance("default", force_backend=counter):
        yield counter


def check_option(encoder, counter, batches):
    """Train with and without; return how often it had compiled after each batch."""
    twin = copy.deepcopy(encoder)
    twin.compiles_blocks = False
    optimizers = [torch.optim.Adam(e.parameters(), 0.01) for e in (encoder, twin)]
    counts = []
    for batch in batches:
        inputs = features(batch)
        losses = []
        for model, optimizer in zip((encoder, twin), optimizers, strict=True):
            torch.manual_seed(0)  # Of layer drop.
            optimizer.zero_grad()
            out, *_ = model(*inputs)
            loss = out.sin().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
        counts.append(counter.frame_count)
    assert encoder.state_dict().keys() == twin.state_dict().keys()
    return counts


@pytest.mark.parametrize(
    "name, options",
    [
        ("fastformer", {}),
        pytest.param("aft-simple", {"layer_drop_rate": 0.5}, marks=pytest.mark.slow),
        pytest.param(
            "fastformer",
            {"block_type": "conformer", "gradient_checkpoint_layers": [0, 1, 2]},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "aft-simple",
            {
                "block_type": "branchformer",
                "merge_method": "fixed_ave",
                "cgmlp_weight": [0.3, 0.5],
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_option_compiles_once_for_all_blocks_and_lengths(name, options, counter):
    encoder = build(name, compile=True, **WITHOUT_DROPOUT, **options).train()
    batches = ([163, 120], [40, 39], [150, 149, 20], [280, 280], [2100, 1500])
    first, *others = check_option(encoder, counter, batches)
    assert first > 0
    assert others == [first] * len(others)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aft-full", "aft-local", "aft-conv"])
def test_option_compiles_once_more_for_another_form(name, counter):
    encoder = build(
        name, compile=True, num_blocks=1, **WITHOUT_DROPOUT, **SMALL.get(name, {})
    )
    batches = ([163, 120], [2100, 1500], [150, 149, 20], [640, 640])
    _, second, *others = check_option(encoder.train(), counter, batches)
    assert others == [second, second]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("block_type", ["e_branchformer", "conformer"])
def test_option_compiles_once_with_inductor(block_type):
    counter = CompileCounterWithBackend("inductor")
    encoder = build(
        "fastformer",
        block_type=block_type,
        num_blocks=1,
        compile=True,
        **WITHOUT_DROPOUT,
    )
    batches = ([163, 120], [300, 61], [150, 149, 20])
    with torch.compiler.set_stance("default", force_backend=counter):
        first, *others = check_option(encoder.train(), counter, batches)
    assert others == [first, first]


def test_option_leaves_all_but_whole_utterances_in_training(counter):
    options = {"dynamic_chunk_training": True, "short_chunk_threshold": 1.0}
    encoder = build("aft-simple", compile=True, **WITHOUT_DROPOUT, **options)
    check_option(encoder.train(), counter, [[163, 120], [300, 61]])
    encoder.eval()
    encoder(*features([163, 120]))
    assert counter.frame_count == 0


@pytest.mark.parametrize(
    "options",
    [
        {"block_type": "conformer", "stochastic_depth_rate": [0.0, 0.1]},
        {
            "block_type": "branchformer",
            "merge_method": "learned_ave",
            "attn_branch_drop_rate": 0.1,
        },
    ],
)
def test_option_refuses_branches(options):
    with pytest.raises(ValueError, match="_rate cannot go with compile: true"):
        build("fastformer", compile=True, **options)


@needs_compiler
@torch.no_grad()
@pytest.mark.slow
def test_inductor():
    encoder = build("fastformer", num_blocks=1, pos_enc_layer_type="abs_pos")
    call = torch.compile(encoder, fullgraph=True, dynamic=True)
    for batch in LENGTHS[:2]:
        inputs = features(batch)
        expected, olens, _ = encoder(*inputs)
        actual, actual_olens, _ = call(*inputs)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(actual_olens, olens)
