"""Chunks against the plain definitions with a mask, and streams against chunks."""

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_fastformer.layers import reference
from espnet_fastformer.layers.chunks import (
    ChunkedLayer,
    Chunks,
    in_chunks,
    pad_to_chunks,
)

from .checks import (
    MIXERS,
    SIZE,
    assert_near,
    build,
    evaluate,
    mask_of,
    plain,
    random_inputs,
)

NOT_STREAMING = ("full", "factorized", "folded")
STREAMING = [name for name in MIXERS if not any(x in name for x in NOT_STREAMING)]
every_streaming_mixer = pytest.mark.parametrize("name", STREAMING)


def whole(layer, *inputs, mask=None, size, num_left=None):
    """All of an utterance in one call, without the padding of its last chunk."""
    frames = inputs[0].size(1)
    padded = [pad_to_chunks(x, mask, size) for x in inputs]
    with in_chunks(Chunks(size, num_left)):
        return layer(*(x for x, _ in padded), padded[0][1])[:, :frames]


def stream(layer, *inputs, ends, size, num_left=None):
    """Whole chunks at a time, up to each of `ends`."""
    states, outs = None, []
    for start, end in pairwise([0, *ends]):
        chunks = Chunks(size, num_left, states)
        with in_chunks(chunks):
            outs.append(layer(*(x[:, start * size : end * size] for x in inputs)))
        states = chunks.next_states
    return torch.cat(outs, dim=1)


@every_streaming_mixer
@pytest.mark.parametrize("num_left", [None, 0, 1, 3])
@pytest.mark.parametrize("size", [1, 4, 5, 16])
def test_chunks_equal_plain_definition_with_mask(name, size, num_left, device):
    layer = build(name, device).double()
    inputs = random_inputs(layer, 3, 43, device)
    real = mask_of([43, 30, 0], 43, device)
    seen = real & reference.chunk_mask(43, size, num_left).to(device)
    cotangent = torch.randn_like(inputs[0]) * real.mT
    actual, expected = (
        evaluate(function, layer.named_parameters(), inputs, cotangent, mask)
        for function, mask in (
            (partial(whole, layer, size=size, num_left=num_left), real),
            (partial(plain, layer), seen),
        )
    )
    actual["output"] *= real.mT
    expected["output"] *= real.mT
    for key, value in expected.items():
        assert_near(actual[key], value, 1e-9)


@every_streaming_mixer
def test_one_chunk_is_the_whole_utterance(name, device):
    layer = build(name, device).double()
    inputs = random_inputs(layer, 2, 37, device)
    mask = mask_of([37, 20], 37, device)
    in_one = whole(layer, *inputs, mask=mask, size=37)
    torch.testing.assert_close(in_one, layer(*inputs, mask))


@every_streaming_mixer
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-4), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)],
    ids=str,
)
def test_every_dtype_and_gradient(name, dtype, tolerance, device):
    layer = build(name, device).to(dtype)
    inputs = random_inputs(layer, 2, 40, device, dtype)
    cotangent = torch.randn_like(inputs[0])
    exact = copy.deepcopy(layer).double()
    actual = evaluate(
        partial(whole, layer, size=8), layer.named_parameters(), inputs, cotangent
    )
    expected = evaluate(
        partial(whole, exact, size=8),
        exact.named_parameters(),
        [x.double() for x in inputs],
        cotangent.double(),
    )
    assert actual["output"].dtype == dtype
    for key, value in expected.items():
        like = expected.get(key.replace(".bias", ".weight"))
        assert_near(actual[key], value, tolerance, like)


@every_streaming_mixer
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_stream_equals_whole_however_it_is_cut(name, data):
    size = data.draw(st.integers(1, 9), label="size")
    num_left = data.draw(st.none() | st.integers(0, 5), label="num_left")
    cuts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6), label="cuts")
    ends = torch.tensor(cuts).cumsum(0).tolist()
    layer = build(name)
    inputs = random_inputs(layer, 2, ends[-1] * size, dtype=torch.float32)
    expected = whole(layer, *inputs, size=size, num_left=num_left)
    actual = stream(layer, *inputs, ends=ends, size=size, num_left=num_left)
    assert_near(actual, expected, 1e-5)


def with_keys_from(layer, drift: torch.Tensor):
    """Parameters and inputs whose keys, or scores of queries, follow `drift` (T,)."""
    inputs = random_inputs(layer, 1, len(drift), dtype=torch.float32)
    for x in inputs:
        x[..., 0] = drift / 100
    with torch.no_grad():
        if hasattr(layer, "linear_k"):
            layer.linear_k.weight[:, 0] = 100.0
        else:
            layer.query.weight[0] = torch.eye(SIZE)[0]
            layer.query_att.weight[:, 0] = 100.0 * layer.attention_head_size**0.5
    return inputs


@every_streaming_mixer
@pytest.mark.parametrize("num_left", [None, 7])
@pytest.mark.parametrize("change", [200, -200])
def test_keys_that_change_by_200(name, change, num_left):
    layer = build(name)
    inputs = with_keys_from(layer, torch.linspace(-change / 2, change / 2, 2000))
    options = {"size": 10, "num_left": num_left}
    with torch.no_grad():
        exact = copy.deepcopy(layer).double()
        expected = whole(exact, *(x.double() for x in inputs), **options)
        assert_near(whole(layer, *inputs, **options), expected, 1e-4)
        by_chunk = stream(layer, *inputs, ends=range(1, 201), **options)
        assert_near(by_chunk, expected, 1e-4)


@pytest.mark.parametrize(
    "name, is_constant",
    [
        *((name, True) for name in ("fastformer", "local-offset", "simple", "conv")),
        ("simple", False),
    ],
)
def test_no_drift_over_100000_frames(name, is_constant):
    layer = build(name)
    inputs = random_inputs(layer, 1, 100_000, dtype=torch.float32)
    if is_constant:  # Rounds in the same direction every time.
        inputs = [x[:, :1].expand_as(x) for x in inputs]
    with torch.no_grad():
        by_chunk = stream(layer, *inputs, ends=range(1, 1001), size=100)
        exact = copy.deepcopy(layer).double()
        in_one = [x[:, -1000:].double() for x in inputs]
        chunks = Chunks(100)
        with in_chunks(chunks):
            exact(*(x[:, :-1000].double() for x in inputs))
        with in_chunks(Chunks(100, states=chunks.next_states)):
            expected = exact(*in_one)
    assert_near(by_chunk[:, -1000:], expected, 1e-4)


@every_streaming_mixer
@pytest.mark.parametrize("num_left", [None, 3])
def test_state_does_not_grow(name, num_left):
    layer = build(name)
    states = None
    sizes = []
    for count in (1, 1, 5, 50):
        chunks = Chunks(4, num_left, states)
        with in_chunks(chunks):
            layer(*random_inputs(layer, 2, 4 * count, dtype=torch.float32))
        states = chunks.next_states
        sizes.append([x.shape for x in states])
        assert sizes[-1] == [x.shape for x in chunks.initial_states]
        assert all(len(x) == 2 for x in states)
    assert len(set(map(tuple, sizes))) == 1


@every_streaming_mixer
def test_streams_at_other_positions_share_a_call(name):
    layer = build(name)
    inputs = random_inputs(layer, 2, 60, dtype=torch.float32)
    offsets = (20, 36)
    states, expected = [], []
    for index, offset in enumerate(offsets):
        one = [x[index : index + 1] for x in inputs]
        expected.append(stream(layer, *one, ends=range(1, 16), size=4)[:, offset:])
        chunks = Chunks(4)
        with in_chunks(chunks):
            layer(*(x[:, :offset] for x in one))
        states.append(chunks.next_states)
    both = [torch.cat(pair) for pair in zip(*states, strict=True)]
    with in_chunks(Chunks(4, states=both)):
        part = [
            torch.stack([x[i, o : o + 24] for i, o in enumerate(offsets)])
            for x in inputs
        ]
        actual = layer(*part)
    for index in range(2):
        assert_near(actual[index], expected[index][0, :24], 1e-5)


def test_state_of_other_layers_is_refused():
    layer = build("simple")
    x = random_inputs(layer, 1, 8, dtype=torch.float32)
    for wrong in ([], [torch.zeros(2, 1, 1, 16), torch.zeros(2, 1, 1, 8)]):
        with (
            in_chunks(Chunks(4, states=wrong)),
            pytest.raises(ValueError, match="another model, batch or chunk size"),
        ):
            layer(*x)


@pytest.mark.parametrize("name", ["full-dense", "full-factorized", "local-factorized"])
def test_absolute_positions_are_refused(name):
    layer = build(name)
    with (
        in_chunks(Chunks(4)),
        pytest.raises(ValueError, match="absolute position"),
    ):
        layer(*random_inputs(layer, 1, 8, dtype=torch.float32))


def test_chunks_are_those_of_the_thread():
    layer = ChunkedLayer()
    with in_chunks(Chunks(4)), ThreadPoolExecutor(1) as other:
        assert layer.chunks.size == 4
        assert other.submit(lambda: layer.chunks).result() is None
    assert layer.chunks is None
