"""What only the four forms of the Attention Free Transformer promise."""

import pytest
import torch
from espnet2.torch_utils.initialize import initialize
from hypothesis import given, settings
from hypothesis import strategies as st
from typeguard import TypeCheckError

from espnet_fastformer.layers.aft import AFTConv, AFTFull, AFTLocal, AFTSimple
from espnet_fastformer.layers.reference import aft

from .checks import (
    AFT_LAYERS,
    HEADS,
    MAX_LEN,
    SIZE,
    assert_matches_plain,
    assert_near,
    build,
    evaluate,
    mask_of,
    plain,
    random_inputs,
    where_numbers_differ,
)

every_form = pytest.mark.parametrize("name", AFT_LAYERS)
seeds = st.integers(0, 2**32 - 1)


@every_form
@pytest.mark.parametrize("frames", [1, 37, 130])
def test_without_output_projection(name, frames, device):
    layer = build(name, device, use_out_proj=False).double()
    assert not any("linear_out" in key for key in layer.state_dict())
    inputs = random_inputs(layer, 3, frames, device)
    mask = mask_of([frames, (frames + 1) // 2, 0], frames, device)
    assert_matches_plain(layer, inputs, 1e-9, mask)
    assert not layer(*inputs, mask)[2].any()


@every_form
def test_dropout_falls_on_the_pooled_values(name, device):
    layer = build(name, device, dropout_rate=0.2, use_out_proj=False)
    inputs = random_inputs(layer, 500, 4, device, torch.float32)
    kept = layer.train()(*inputs) / layer.eval()(*inputs)
    dropped = kept == 0
    torch.testing.assert_close(kept[~dropped], torch.full_like(kept[~dropped], 1.25))
    assert dropped.float().mean().item() == pytest.approx(0.2, abs=0.05)


def uncover(name: str, device) -> torch.nn.Module:
    """A layer whose projections hand its inputs on."""
    layer = build(name, device, use_out_proj=False)
    for linear in (layer.linear_q, layer.linear_k, layer.linear_v):
        torch.nn.init.eye_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    return layer


def set_bias(layer: torch.nn.Module, signs: torch.Tensor):
    """Position biases of 50 times `signs`, which are cut to as many as there are."""
    with torch.no_grad():
        match layer:
            case AFTSimple():
                return
            case AFTConv():
                weight = signs[: layer.filter_weight.size(1)].expand_as(
                    layer.filter_weight
                )
                layer.filter_weight.copy_(weight)
                layer.filter_scale.fill_(50 * weight[0].std(correction=0))
                layer.filter_shift.copy_(50 * weight.mean(1, keepdim=True))
                return
        bias = layer.position_bias
        if isinstance(bias, torch.nn.Module):
            bias.query.zero_()[:, 0] = 5 * signs.flip(0)[: len(bias.query)].abs()
            bias.key.zero_()[:, 0] = 10 * signs[: len(bias.key)]
        elif isinstance(bias, torch.nn.Parameter):
            bias.copy_((50 * signs[: bias.size(-1)]).expand_as(bias))


def uniform_signs(frames: int):
    return 2 * torch.rand(frames, SIZE) - 1, 2 * torch.rand(200) - 1


def opposed_signs(frames: int):
    """Every k + w of a query cancels although both are as large as can be."""
    alternating = torch.ones(200)
    alternating[1::2] = -1
    return alternating[:frames, None].expand(-1, SIZE), -alternating


def constant_signs(sign: float):
    def signs(frames: int):
        return torch.full((frames, SIZE), sign), torch.full((200,), -sign)

    return signs


@every_form
@where_numbers_differ
@pytest.mark.parametrize("frames", [1, 2, 5, 37, 130])
@pytest.mark.parametrize(
    "signs",
    [uniform_signs, opposed_signs, constant_signs(1.0), constant_signs(-1.0)],
    ids=["uniform", "opposed", "positive", "negative"],
)
def test_keys_and_biases_up_to_50(name, frames, signs, device):
    layer = uncover(name, device)
    keys, biases = signs(frames)
    set_bias(layer, biases)
    key = 50 * keys.expand(3, -1, -1)
    # Positive values over several magnitudes: no cancellation hides a wrong weight.
    value = torch.empty(3, frames, SIZE).uniform_(-3, 3).exp()
    inputs = [x.to(device) for x in (torch.randn_like(value), key, value)]
    mask = mask_of([frames, (frames + 1) // 2, 0], frames, device)
    cotangent = torch.randn_like(inputs[0])

    actual = evaluate(layer, layer.named_parameters(), inputs, cotangent, mask)
    exact = plain(layer.double(), *(x.double() for x in inputs), mask=mask)
    torch.testing.assert_close(actual["output"].double(), exact, rtol=1e-4, atol=0)
    for source, gradient in actual.items():
        assert gradient.isfinite().all(), source


@every_form
@where_numbers_differ
@pytest.mark.parametrize("frames", [1, 37, 130])
@pytest.mark.parametrize("signs", [uniform_signs, opposed_signs])
def test_gradients_of_keys_and_biases_up_to_50(name, frames, signs, device):
    layer = uncover(name, device)
    keys, biases = signs(frames)
    set_bias(layer, biases)
    inputs = [x.to(device) for x in torch.randn(3, 3, frames, SIZE)]
    inputs[1] = 50 * keys.expand(3, -1, -1).to(device)
    mask = mask_of([frames, (frames + 1) // 2, 0], frames, device)
    assert_matches_plain(layer, inputs, 1e-4, mask)


@every_form
@where_numbers_differ
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("frames", [1, 37, 130])
def test_keys_and_biases_up_to_50_in_half_precision(name, dtype, frames, device):
    layer = uncover(name, device)
    keys, biases = uniform_signs(frames)
    set_bias(layer, biases)
    layer = layer.to(dtype)
    inputs = [x.to(device, dtype) for x in torch.randn(3, 2, frames, SIZE)]
    inputs[1] = (50 * keys.expand(2, -1, -1)).to(device, dtype)
    cotangent = torch.randn_like(inputs[0])
    for source, tensor in evaluate(
        layer, layer.named_parameters(), inputs, cotangent
    ).items():
        assert tensor.isfinite().all(), source


class DenseAFT(torch.nn.Module):
    """Full AFT of a fixed length with a dense bias and no output projection."""

    def __init__(self, d_model: int, n: int, simple: bool):
        super().__init__()
        self.fc_q = torch.nn.Linear(d_model, d_model)
        self.fc_k = torch.nn.Linear(d_model, d_model)
        self.fc_v = torch.nn.Linear(d_model, d_model)
        if simple:
            self.register_buffer("w", torch.zeros(n, n))
        else:
            self.w = torch.nn.Parameter(torch.ones(n, n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = x.size(1)
        q, k, v = self.fc_q(x), self.fc_k(x), self.fc_v(x)
        weight = torch.exp(k[:, None] + self.w[None, :frames, :frames, None])
        return q.sigmoid() * (weight * v[:, None]).sum(2) / weight.sum(2)


@where_numbers_differ
@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("frames", range(1, 13))
def test_equals_the_widely_used_module(simple, trained, frames, device):
    theirs = DenseAFT(SIZE, 12, simple)
    if trained and not simple:
        torch.nn.init.normal_(theirs.w)
    ours = AFTFull(SIZE, max_len=12, bias="dense", simple=simple, use_out_proj=False)
    names = {"fc_q": "linear_q", "fc_k": "linear_k", "fc_v": "linear_v"}
    state = {
        ".".join(names.get(part, part) for part in key.split(".")): value
        for key, value in theirs.state_dict().items()
    }
    if trained:
        state["position_bias"] = state.pop("w")
    else:
        assert torch.equal(ours.position_bias, state.pop("w"))
    ours.load_state_dict(state, strict=trained)
    theirs, ours = theirs.to(device), ours.to(device)
    x = torch.randn(4, frames, SIZE, device=device)
    assert_near(ours(x, x, x), theirs(x), 1e-5)


@every_form
@given(frames=st.integers(1, 100), seed=seeds)
@settings(max_examples=10, deadline=None)
def test_shifting_all_keys_changes_nothing(name, frames, seed):
    torch.manual_seed(seed)
    layer = build(name).double()
    inputs = random_inputs(layer, 2, frames)
    mask = mask_of([frames, (frames + 1) // 2], frames)
    expected = layer(*inputs, mask)
    with torch.no_grad():
        layer.linear_k.bias.add_(20 * torch.randn_like(layer.linear_k.bias))
    assert_near(layer(*inputs, mask), expected, 1e-9)


@given(frames=st.integers(1, 100), kernel_size=st.integers(0, 40), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_conv_starts_as_simple(frames, kernel_size, seed):
    torch.manual_seed(seed)
    conv = AFTConv(SIZE, attention_heads=HEADS, kernel_size=2 * kernel_size + 1)
    simple = AFTSimple(SIZE)
    state = {k: v for k, v in conv.state_dict().items() if not k.startswith("filter")}
    for key in ("linear_k.weight", "linear_k.bias"):
        state[key] = state[key].repeat_interleave(SIZE // HEADS, 0)
    simple.load_state_dict(state)
    inputs = random_inputs(conv, 2, frames, dtype=torch.float32)
    mask = mask_of([frames, (frames + 1) // 2], frames)
    assert_near(conv(*inputs, mask), simple(*inputs, mask), 1e-5)


@given(frames=st.integers(1, 100), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_simple_follows_a_permutation_of_frames(frames, seed):
    torch.manual_seed(seed)
    layer = build("simple").double()
    inputs = random_inputs(layer, 2, frames)
    order = torch.randperm(frames)
    mask = torch.rand(2, 1, frames) < 0.7
    actual = layer(*(x[:, order] for x in inputs), mask[..., order])
    assert_near(actual, layer(*inputs, mask)[:, order], 1e-9)


@pytest.mark.parametrize(
    ("name", "reach"), [("local-offset", 5), ("local-offset-wide", 79), ("conv", 3)]
)
@given(inside=st.integers(1, 70), shift=st.integers(0, 70), seed=seeds)
@settings(max_examples=15, deadline=None)
def test_bias_by_offset_follows_a_shift(name, reach, inside, shift, seed):
    """Rolled inputs give rolled outputs wherever no window wraps around."""
    torch.manual_seed(seed)
    layer = build(name).double()
    frames = 2 * reach + inside + shift
    inputs = random_inputs(layer, 2, frames)
    rolled = layer(*(x.roll(shift, 1) for x in inputs))
    actual = rolled[:, reach + shift : frames - reach]
    assert_near(actual, layer(*inputs)[:, reach : frames - reach - shift], 1e-9)


def test_local_without_bias_still_sums_over_the_utterance(device):
    layer = AFTLocal(SIZE, window_size=3, use_out_proj=False).to(device)
    torch.nn.init.zeros_(layer.position_bias)
    query, key, value = random_inputs(layer, 2, 50, device, torch.float32)
    zero = torch.zeros(1, 1, device=device)
    q, k, v = layer.linear_q(query), layer.linear_k(key), layer.linear_v(value)
    assert_near(layer(query, key, value), aft(q, k, v, zero), 1e-5)


def test_espnets_initialization_keeps_position_biases():
    layers = {
        "dense": AFTFull(SIZE, bias="dense", max_len=30),
        "fixed": AFTFull(SIZE, bias="dense", max_len=30, simple=True),
        "full": AFTFull(SIZE),
        "local": AFTLocal(SIZE, bias="factorized"),
        "offset": AFTLocal(SIZE),
        "conv": AFTConv(SIZE),
    }
    before = {k: v.clone() for k, v in torch.nn.ModuleDict(layers).state_dict().items()}
    initialize(torch.nn.ModuleDict(layers), "xavier_uniform")
    assert layers["dense"].position_bias.eq(1).all()
    assert not layers["fixed"].position_bias.any()
    for name in ("full", "local"):
        for table in layers[name].position_bias.parameters():
            assert table.mean().item() == pytest.approx(0, abs=2e-4)
            assert table.std().item() == pytest.approx(0.01, rel=0.02)
    assert not layers["conv"].filter_scale.any()
    assert not layers["conv"].filter_shift.any()
    after = torch.nn.ModuleDict(layers).state_dict()
    for key in ("offset.position_bias", "conv.filter_weight"):
        assert after[key].std().item() == pytest.approx(before[key].std(), rel=0.5)


@pytest.mark.parametrize("bias", ["factorized", "dense"])
def test_positions_beyond_max_len_have_no_bias(bias, device):
    layer = AFTFull(SIZE, max_len=MAX_LEN, bias=bias).to(device)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    inputs = random_inputs(layer, 1, MAX_LEN + 20, device, torch.float32)
    simple = AFTSimple(SIZE).to(device)
    simple.load_state_dict(layer.state_dict(), strict=False)
    actual, unbiased = layer(*inputs), simple(*inputs)
    assert_near(actual[:, MAX_LEN:], unbiased[:, MAX_LEN:], 1e-5)
    assert not torch.allclose(actual[:, MAX_LEN - 1], unbiased[:, MAX_LEN - 1])


@pytest.mark.parametrize(
    ("cls", "options", "named"),
    [
        (AFTFull, {"bias": "offset"}, "bias"),
        (AFTFull, {"max_len": 0}, "max_len"),
        (AFTFull, {"bias_rank": 0}, "bias_rank"),
        (AFTFull, {"bias": "factorized", "simple": True}, "simple"),
        (AFTLocal, {"bias": "dense"}, "bias"),
        (AFTLocal, {"window_size": 0}, "window_size"),
        (AFTLocal, {"bias": "factorized", "max_len": 0}, "max_len"),
        (AFTLocal, {"bias": "factorized", "bias_rank": -1}, "bias_rank"),
        (AFTConv, {"attention_heads": 3}, "attention_heads"),
        (AFTConv, {"attention_heads": 0}, "attention_heads"),
        (AFTConv, {"kernel_size": 30}, "kernel_size"),
        (AFTConv, {"kernel_size": -1}, "kernel_size"),
    ],
)
def test_bad_option_is_named(cls, options, named):
    with pytest.raises(ValueError, match=named):
        cls(SIZE, **options)


@pytest.mark.parametrize("cls", [AFTFull, AFTLocal, AFTSimple, AFTConv])
def test_argument_types_are_checked(cls):
    with pytest.raises(TypeCheckError, match="size"):
        cls("8")


@every_form
def test_mask_that_differs_between_queries_is_refused(name):
    layer = build(name)
    inputs = random_inputs(layer, 2, 9, dtype=torch.float32)
    with pytest.raises(ValueError, match="mask"):
        layer(*inputs, torch.ones(2, 9, 9).tril())
