"""Streams against the chunked whole, and chunks in training."""

import copy
from functools import partial

import pytest
import torch
from espnet2.asr.ctc import CTC
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_fastformer.encoder.streaming import ChunkSizes, StreamingState
from espnet_fastformer.layers import pieces

from .encoders import BLOCK_TYPES, ENCODERS, FEATURES, build, features, in_turn

STREAMING = [name for name in ENCODERS if name != "aft-full"]
every_encoder = pytest.mark.parametrize("name", STREAMING)


def whole(encoder, xs_pad, ilens=None, **options):
    if ilens is None:
        ilens = torch.full((len(xs_pad),), xs_pad.size(1))
    encoder.decoding_chunk_size = encoder.block_size
    with torch.no_grad():
        return encoder(xs_pad, ilens, **options)[0]


def stream(encoder, xs_pad, pieces, **options):
    """Output of pieces of these lengths, and of what is left."""
    state, outs, start = None, [], 0
    for length in [*pieces, None]:
        end = None if length is None else start + length
        with torch.no_grad():
            out, olens, state = encoder(
                xs_pad[:, start:end],
                None,
                state,
                is_final=length is None,
                infer_mode=True,
                **options,
            )
        assert olens.tolist() == [out.size(1)] * len(xs_pad)
        outs.append(out)
        start = end
    assert state is None
    return torch.cat(outs, dim=1)


@pytest.mark.parametrize(
    "name, block_size, block_type, num_left_chunks",
    in_turn([None, 0, 2], STREAMING, [1, 4, 16], BLOCK_TYPES),
)
def test_stream_equals_whole(name, block_size, block_type, num_left_chunks):
    options = {"block_size": block_size, "num_left_chunks": num_left_chunks}
    encoder = build(name, block_type=block_type, **options)
    xs_pad, _ = features([151, 151])
    expected = whole(encoder, xs_pad)
    actual = stream(encoder, xs_pad, [0, 1, 2, 40, 7, 64, 0])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@every_encoder
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_stream_equals_whole_however_it_is_cut(name, data):
    block_size = data.draw(st.integers(1, 20), label="block_size")
    left = data.draw(st.integers(-1, 3), label="num_left_chunks")
    pieces = data.draw(st.lists(st.integers(0, 70), max_size=6), label="pieces")
    last = data.draw(st.integers(7, 70), label="last")
    encoder = build(name, block_size=block_size, num_left_chunks=left, num_blocks=1)
    xs_pad, _ = features([sum(pieces) + last])
    expected = whole(encoder, xs_pad)
    actual = stream(encoder, xs_pad, pieces)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"pos_enc_layer_type": "abs_pos"},
        {"pos_enc_layer_type": "scaled_abs_pos"},
        {"pos_enc_layer_type": "none"},
        {"input_layer": "conv2d6"},
        {"input_layer": "conv1d2"},
        {"input_layer": "linear"},
        {"macaron_ffn": True, "use_ffn": True},
        {"block_type": "branchformer", "merge_method": "fixed_ave"},
    ],
    ids=str,
)
def test_stream_equals_whole_with_other_options(options):
    encoder = build("aft-conv", block_size=8, **options)
    xs_pad, _ = features([140, 140])
    actual = stream(encoder, xs_pad, [30, 60])
    torch.testing.assert_close(actual, whole(encoder, xs_pad), rtol=0, atol=1e-5)


@every_encoder
def test_a_chunk_as_long_as_the_utterance_is_the_encoder_as_it_was(name):
    encoder = build(name, block_size=50)
    xs_pad, ilens = features([203, 150])
    in_one = whole(encoder, xs_pad, ilens)
    encoder.decoding_chunk_size = None
    with torch.no_grad():
        torch.testing.assert_close(in_one, encoder(xs_pad, ilens)[0])


@every_encoder
def test_later_frames_change_nothing(name):
    encoder = build(name, block_type="conformer", block_size=4)
    xs_pad, _ = features([151])
    changed = xs_pad.clone()
    changed[:, 4 * 16 + 3 :] += 10
    both = whole(encoder, torch.cat([xs_pad, changed]))
    torch.testing.assert_close(both[0, :16], both[1, :16])
    assert not torch.allclose(both[0, 16:20], both[1, 16:20])


@every_encoder
def test_padding_has_no_influence(name):
    encoder = build(name, block_size=4)
    xs_pad, ilens = features([151, 90])
    alone = whole(encoder, xs_pad[1:, :90])
    poisoned = xs_pad.clone()
    poisoned[1, 90:] = 1e3
    together = whole(encoder, poisoned, ilens)[1:, : alone.size(1)]
    torch.testing.assert_close(together, alone)


def test_long_recordings_are_encoded_from_state_to_state(monkeypatch):
    encoder = build("aft-conv", block_size=4, num_left_chunks=3)
    xs_pad, _ = features([400])
    expected = whole(encoder, xs_pad)
    monkeypatch.setattr(pieces, "FRAMES_AT_ONCE", 18)
    torch.testing.assert_close(whole(encoder, xs_pad), expected)


def test_interctc_conditions_streams():
    encoder = build(
        "fastformer",
        block_size=4,
        interctc_layer_idx=[1],
        interctc_use_conditioning=True,
    )
    encoder.conditioning_layer = torch.nn.Linear(9, 16)
    ctc = CTC(9, 16)
    xs_pad, _ = features([151])
    expected, intermediate = whole(encoder, xs_pad, ctc=ctc)
    assert [number for number, _ in intermediate] == [1]
    actual = stream(encoder, xs_pad, [40, 50], ctc=ctc)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="needs ctc"):
        stream(encoder, xs_pad, [])


@every_encoder
def test_streams_at_other_positions_share_a_call(name):
    encoder = build(name, block_type="conformer", block_size=4)
    xs_pad, _ = features([151, 151])
    infer = partial(encoder.forward_infer, is_final=False)
    with torch.no_grad():
        alone = [infer(xs_pad[:1, :3])[2], infer(xs_pad[1:, : 3 + 32])[2]]
        expected = [
            infer(xs_pad[:1, 3 : 3 + 64], alone[0])[0],
            infer(xs_pad[1:, 35 : 35 + 64], alone[1])[0],
        ]
        next_ones = torch.cat([xs_pad[:1, 3 : 3 + 64], xs_pad[1:, 35 : 35 + 64]])
        out, _, state = infer(next_ones, StreamingState.batch(alone))
        torch.testing.assert_close(out, torch.cat(expected), rtol=0, atol=1e-5)
        # And part again.
        last = [encoder.forward_infer(xs_pad[:1, 67:], state.split()[0])[0]]
        end = torch.cat([expected[0], *last], dim=1)
    expected = whole(encoder, xs_pad[:1])
    torch.testing.assert_close(end, expected, rtol=0, atol=1e-5)


@every_encoder
@pytest.mark.parametrize("num_left_chunks", [None, 2])
def test_state_does_not_grow(name, num_left_chunks):
    encoder = build(name, block_size=4, num_left_chunks=num_left_chunks)

    def count(state):
        parts = [state.features, *state.embed, *state.blocks]
        return sum(part.untyped_storage().nbytes() for part in parts)

    state = encoder.initial_state(1)
    least = count(state)
    sizes = []
    with torch.no_grad():
        for frames in (19, 16, 16 * 50, 16):
            xs_pad, _ = features([frames])
            _, _, state = encoder.forward_infer(xs_pad, state, is_final=False)
            sizes.append(count(state))
    three_frames = 3 * FEATURES * 4
    assert sizes == [least + three_frames] * 4


def test_too_little_for_a_frame_gives_none():
    encoder = build("fastformer", block_size=4)
    out, olens, state = encoder.forward_infer(torch.zeros(1, 6, FEATURES))
    assert out.shape == (1, 0, 16)
    assert olens.tolist() == [0]
    assert state is None


def test_state_that_does_not_fit_is_refused():
    encoder = build("aft-simple", block_size=4)
    xs_pad, _ = features([30])
    _, _, state = encoder.forward_infer(xs_pad, is_final=False)
    with pytest.raises(ValueError, match="another model or batch"):
        encoder.forward_infer(torch.zeros(2, 30, FEATURES), state)
    other = build("aft-conv", block_size=4)
    with pytest.raises(ValueError, match="another model, batch or chunk size"):
        other.forward_infer(xs_pad, state)
    for options in ({}, {"block_size": 8}, {"num_left_chunks": 2}):
        with pytest.raises(ValueError, match="one block_size and num_left_chunks"):
            StreamingState.batch([state, encoder.initial_state(1, **options)])


def test_stream_goes_on_as_it_began():
    encoder = build("fastformer", block_size=4, num_left_chunks=2)
    xs_pad, _ = features([151])
    expected = whole(encoder, xs_pad)
    encoder.block_size, encoder.num_left_chunks = 8, None
    begun = encoder.initial_state(1, block_size=4, num_left_chunks=2)
    first, _, state = encoder.forward_infer(xs_pad[:, :70], begun, is_final=False)
    rest, _, _ = encoder.forward_infer(xs_pad[:, 70:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), expected)
    assert encoder.initial_state(1, num_left_chunks=-1).num_left_chunks is None


def test_streams_keep_nothing_for_gradients():
    encoder = build("aft-conv", block_size=4)
    out, _, state = encoder.forward_infer(features([70])[0], is_final=False)
    assert not any(x.requires_grad for x in (out, *state.blocks))


def test_padded_streams_are_refused():
    encoder = build("fastformer", block_size=4)
    xs_pad, ilens = features([100, 20])
    with pytest.raises(ValueError, match=r"must all be 100, but are \[100, 20\]"):
        encoder(xs_pad, ilens, infer_mode=True)


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("aft-full", {}, "aft_type: full"),
        ("aft-local", {"aft_bias": "factorized"}, "aft_bias: factorized"),
        ("fastformer", {"pos_enc_layer_type": "conv"}, "pos_enc_layer_type: conv"),
        ("fastformer", {"input_layer": "embed"}, "input_layer: embed"),
        (
            "fastformer",
            {"block_type": "branchformer", "merge_method": "learned_ave"},
            "merge_method: learned_ave",
        ),
    ],
)
def test_what_cannot_stream_says_why(name, options, key):
    encoder = build(name, **options)
    with pytest.raises(ValueError, match=key):
        encoder.forward_infer(torch.zeros(1, 30, FEATURES))
    for option in ({"block_size": 4}, {"dynamic_chunk_training": True}):
        with pytest.raises(ValueError, match=key):
            build(name, **options, **option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"block_size": 8, "hop_size": 4}, "hop_size must equal block_size"),
        ({"hop_size": 4}, "hop_size must equal block_size"),
        ({"block_size": 8, "look_ahead": 4}, "look_ahead must be 0"),
        (
            {"dynamic_chunk_training": True, "short_chunk_size": 0},
            "short_chunk_size must be at least 1",
        ),
        (
            {"dynamic_chunk_training": True, "short_chunk_threshold": 2.0},
            "short_chunk_threshold must be between 0 and 1",
        ),
    ],
)
def test_option_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        build("fastformer", **options)


def test_without_chunks_nothing_changes():
    plain, chunked = (
        build("fastformer", **options)
        for options in ({}, {"dynamic_chunk_training": True, "num_left_chunks": 2})
    )
    extra = chunked.state_dict().keys() - plain.state_dict().keys()
    assert extra == {"chunk_sizes._extra_state"}
    # A model that was trained before goes on with chunks.
    chunked.load_state_dict(plain.state_dict(), strict=False)
    xs_pad, ilens = features([151, 90])
    with torch.no_grad():
        outs = [encoder(xs_pad, ilens)[0] for encoder in (plain, chunked)]
    torch.testing.assert_close(*outs, rtol=0, atol=0)


def test_chunk_sizes_come_from_the_seed_and_go_on_from_a_checkpoint():
    def draws(sizes, count):
        return [sizes.draw() for _ in range(count)]

    torch.manual_seed(3)
    sizes = ChunkSizes(0.6, 32)
    torch.rand(7)  # Processes draw other numbers in between.
    expected = draws(sizes, 400)
    short = [size for size in expected if size is not None]
    assert 0.5 < len(short) / len(expected) < 0.7
    assert (min(short), max(short)) == (4, 32)

    torch.manual_seed(3)
    first = ChunkSizes(0.6, 32)
    assert draws(first, 10) == expected[:10]
    checkpoint = copy.deepcopy(first.state_dict())
    torch.manual_seed(3)
    resumed = ChunkSizes(0.6, 32)
    resumed.load_state_dict(checkpoint)
    assert draws(resumed, 10) == expected[10:20]
    torch.manual_seed(4)
    assert draws(ChunkSizes(0.6, 32), 20) != expected[:20]


@every_encoder
@pytest.mark.parametrize("block_type", BLOCK_TYPES)
def test_training_in_chunks_reaches_every_parameter(name, block_type):
    encoder = build(name, block_type=block_type, dynamic_chunk_training=True).train()
    encoder.chunk_sizes.draw = lambda: 4
    xs_pad, ilens = features([151, 90])
    encoder(xs_pad, ilens)[0].square().sum().backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


def test_checkpointing_gives_the_same_gradients():
    results = []
    for layers in ([], [0, 1, 2]):
        torch.manual_seed(0)
        encoder = build(
            "aft-local",
            block_type="conformer",
            dynamic_chunk_training=True,
            gradient_checkpoint_layers=layers,
            dropout_rate=0.0,
            positional_dropout_rate=0.0,
        ).train()
        encoder.chunk_sizes.draw = lambda: 4
        xs_pad, ilens = features([151, 90])
        # Another batch before the backward pass.
        loss = encoder(xs_pad, ilens)[0].square().sum()
        encoder.chunk_sizes.draw = lambda: None
        (loss + encoder(xs_pad, ilens)[0].sum()).backward()
        results.append([p.grad for p in encoder.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
