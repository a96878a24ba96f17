"""What every mixer promises, whatever its formula."""

import copy
import pickle

import pytest
import torch
from espnet2.torch_utils.quantization import quantize_dynamic
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from .checks import (
    MAX_LEN,
    MIXERS,
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
from .memory import allocated

every_mixer = pytest.mark.parametrize("name", MIXERS)

# Around what the folded form takes for short, chunks of whole utterances, which are as
# long as a bias reaches but at least 32 frames, and the longest position bias.
LENGTHS = [1, 2, SIZE, SIZE + 1, 31, 32, 33, 64, 75, 79, 80, MAX_LEN, MAX_LEN + 1, 200]


@every_mixer
@pytest.mark.parametrize("frames", LENGTHS)
def test_float64_equals_plain_definition(name, frames, device):
    layer = build(name, device).double()
    inputs = random_inputs(layer, 3, frames, device)
    mask = mask_of([frames, (frames + 1) // 2, 0], frames, device)
    assert_matches_plain(layer, inputs, 1e-9, mask)


@every_mixer
def test_mask_is_optional(name, device):
    layer = build(name, device).double()
    inputs = random_inputs(layer, 2, 37, device)
    assert_matches_plain(layer, inputs, 1e-9)
    everything = torch.ones(2, 1, 37, device=device)
    torch.testing.assert_close(layer(*inputs), layer(*inputs, everything))


@every_mixer
def test_mask_may_have_holes(name, device):
    layer = build(name, device).double()
    inputs = random_inputs(layer, 4, 37, device)
    mask = torch.rand(4, 1, 37, device=device) < 0.3
    assert_matches_plain(layer, inputs, 1e-9, mask)


@every_mixer
@where_numbers_differ
@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.uint8, torch.float32, torch.float64, torch.bfloat16],
    ids=str,
)
def test_mask_of_any_dtype(name, dtype, device):
    layer = build(name, device)
    inputs = random_inputs(layer, 3, 20, device, torch.float32)
    mask = mask_of([20, 11, 0], 20, device)
    expected = layer(*inputs, mask)
    torch.testing.assert_close(layer(*inputs, mask.to(dtype)), expected)
    torch.testing.assert_close(layer(*inputs, (3 * mask).to(dtype)), expected)


@every_mixer
@where_numbers_differ
@pytest.mark.parametrize("frames", [1, 37, 130])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 6e-2)],
    ids=str,
)
def test_dtypes(name, frames, dtype, tolerance, device):
    layer = build(name, device, dropout_rate=0.5).to(dtype).eval()
    inputs = random_inputs(layer, 3, frames, device, dtype)
    mask = mask_of([frames, (frames + 1) // 2, 0], frames, device)
    assert_matches_plain(layer, inputs, tolerance, mask)
    assert layer(*inputs, mask).dtype == dtype


@every_mixer
@pytest.mark.parametrize("frames", [1, 37, 130])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 1e-2), (torch.bfloat16, 6e-2)],
    ids=str,
)
def test_autocast(name, frames, dtype, tolerance, device):
    layer = build(name, device)
    inputs = random_inputs(layer, 3, frames, device, torch.float32)
    mask = mask_of([frames, (frames + 1) // 2, 0], frames, device)
    autocast = torch.autocast(device.type, dtype)
    assert_matches_plain(layer, inputs, tolerance, mask, autocast)


@every_mixer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("use_autocast", [False, True])
def test_long_sums_neither_overflow_nor_stall(name, dtype, use_autocast, device):
    # 1000 frames around 100 add up to more than float16 holds, and beyond 256 equal
    # terms a bfloat16 sum stops growing.
    layer = build(name, device)
    inputs = [100 + x for x in random_inputs(layer, 1, 1000, device, torch.float32)]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.01)
        if name.startswith("fastformer"):
            layer.query.weight.copy_(torch.eye(SIZE))
            layer.key.weight.copy_(torch.eye(SIZE) / 100)
        else:
            layer.linear_v.weight.copy_(torch.eye(SIZE))
            layer.linear_out.weight.copy_(torch.eye(SIZE))
        expected = plain(layer, *inputs)
        if use_autocast:
            with torch.autocast(device.type, dtype):
                actual = layer(*inputs)
        else:
            actual = layer.to(dtype)(*(x.to(dtype) for x in inputs))
    assert_near(actual.float(), expected, 0.02)


@every_mixer
def test_inputs_need_not_be_contiguous(name, device):
    layer = build(name, device).double()
    inputs = [
        x.repeat(1, 2, 2)[:, ::2, ::2].transpose(0, 1).contiguous().transpose(0, 1)
        for x in random_inputs(layer, 3, 23, device)
    ]
    mask = mask_of([23, 9, 23], 46, device)[..., ::2]
    assert not any(x.is_contiguous() for x in inputs)
    assert_matches_plain(layer, inputs, 1e-9, mask)


@every_mixer
def test_gradient_of_a_part(name, device):
    """Frozen parameters and inputs leave the gradients of the others as they are."""
    layer = build(name, device).double()
    inputs = random_inputs(layer, 2, 70, device)
    mask = mask_of([70, 33], 70, device)
    cotangent = torch.randn_like(inputs[0])
    expected = evaluate(layer, layer.named_parameters(), inputs, cotangent, mask)
    layer.requires_grad_(False)
    for parameter_name, parameter in layer.named_parameters():
        parameter.requires_grad_(True)
        (gradient,) = torch.autograd.grad(layer(*inputs, mask), parameter, cotangent)
        assert_near(gradient, expected[parameter_name], 1e-9)
        parameter.requires_grad_(False)
    for i, x in enumerate(inputs):
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(layer(*inputs, mask), x, cotangent)
        assert_near(gradient, expected[f"input {i}"], 1e-9)
        x.requires_grad_(False)


@every_mixer
@pytest.mark.parametrize("frames", [1, 70])
def test_every_parameter_gets_a_gradient(name, frames, device):
    # Distributed training stops at the first parameter that a step leaves out.
    layer = build(name, device)
    before = dict(layer.named_parameters())
    inputs = random_inputs(layer, 2, frames, device, torch.float32)
    layer(*inputs, mask_of([0, 0], frames, device)).sum().backward()
    after = dict(layer.named_parameters())
    assert before.keys() == after.keys()
    assert all(after[key] is before[key] for key in before)
    assert all(parameter.grad is not None for parameter in after.values())
    assert all(parameter.grad.isfinite().all() for parameter in after.values())


@every_mixer
@where_numbers_differ
@pytest.mark.parametrize("frames", [5, 70])
def test_gradients_with_dropout(name, frames, device):
    layer = build(name, device, dropout_rate=0.4).double()
    inputs = random_inputs(layer, 2, frames, device)
    mask = mask_of([frames, frames // 2], frames, device)
    parameters = dict(layer.named_parameters())

    def fixed_dropout(*tensors):
        torch.manual_seed(1)
        values = dict(zip(parameters, tensors, strict=False))
        rest = tensors[len(parameters) :]
        return torch.func.functional_call(layer, values, (*rest, mask))

    tensors = [*parameters.values(), *(x.requires_grad_() for x in inputs)]
    assert torch.autograd.gradcheck(fixed_dropout, tensors, fast_mode=True)


@every_mixer
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(name, use_reentrant, device):
    layer = build(name, device, dropout_rate=0.4).double()
    inputs = random_inputs(layer, 2, 70, device)
    mask = mask_of([70, 33], 70, device)
    cotangent = torch.randn_like(inputs[0])

    def checkpointed(*inputs, mask):
        return checkpoint(layer, *inputs, mask, use_reentrant=use_reentrant)

    def gradients(function):
        torch.manual_seed(1)
        leaves = [x.detach().requires_grad_() for x in inputs]
        layer.zero_grad()
        function(*leaves, mask=mask).backward(cotangent)
        return [x.grad for x in (*leaves, *layer.parameters())]

    torch.testing.assert_close(gradients(checkpointed), gradients(layer))


@every_mixer
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_copy_and_pickle(name, duplicate, device):
    layer = build(name, device)
    inputs = random_inputs(layer, 2, 20, device, torch.float32)
    twin = duplicate(layer)
    assert torch.equal(twin(*inputs), layer(*inputs))
    for parameter in twin.parameters():
        parameter.data.zero_()
    assert any(parameter.any() for parameter in layer.parameters())


@every_mixer
def test_state_dict_is_the_whole_state(name, device):
    layer, twin = build(name, device), build(name, device)
    inputs = random_inputs(layer, 2, 20, device, torch.float32)
    assert not torch.equal(twin(*inputs), layer(*inputs))
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(*inputs), layer(*inputs))


@every_mixer
def test_all_tensors_follow_the_layer(name):
    # A tensor kept as a plain attribute stays behind on its old device.
    layer = build(name).half().to("meta")
    tensors = [*layer.parameters(), *layer.buffers()]
    assert all(x.is_meta and x.dtype == torch.float16 for x in tensors)
    for module in layer.modules():
        assert not any(torch.is_tensor(x) for x in vars(module).values())


@every_mixer
def test_inference_mode(name, device):
    layer = build(name, device)
    inputs = random_inputs(layer, 2, 70, device, torch.float32)
    mask = mask_of([70, 33], 70, device)
    with torch.inference_mode():
        actual = layer(*inputs, mask)
    torch.testing.assert_close(actual, layer(*inputs, mask))


@every_mixer
def test_dynamic_quantization(name):
    """ESPnet's decoder offers it as `quantize_asr_model`."""
    layer = build(name).eval()
    quantized = quantize_dynamic(layer, {torch.nn.Linear}, torch.qint8)
    inputs = random_inputs(layer, 2, 70, dtype=torch.float32)
    mask = mask_of([70, 33], 70)
    assert_near(quantized(*inputs, mask), layer(*inputs, mask), 0.1)


class LowRankLinear(torch.nn.Linear):
    """A linear map with a low-rank update in its forward, as LoRA libraries add it."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__(linear.in_features, linear.out_features)
        self.load_state_dict(linear.state_dict())
        self.update = torch.nn.Parameter(torch.randn(linear.out_features, 1))

    def forward(self, x):
        return super().forward(x) + x.mean(-1, keepdim=True) @ self.update.T


@pytest.mark.parametrize("training", [True, False])
@every_mixer
def test_replaced_linear_maps_are_used(name, training):
    """ESPnet's LoRA adapters put their own modules in place of linear maps."""
    layer = build(name).double().train(training)
    for key, child in list(layer.named_children()):
        if isinstance(child, torch.nn.Linear):
            setattr(layer, key, LowRankLinear(child).double())
    inputs = random_inputs(layer, 2, 70)
    assert_matches_plain(layer, inputs, 1e-9, mask_of([70, 33], 70))


lengths = st.integers(1, 100)
seeds = st.integers(0, 2**32 - 1)


@every_mixer
@given(length=lengths, paddings=st.tuples(lengths, lengths), seed=seeds)
@settings(max_examples=15, deadline=None)
def test_padding_changes_nothing(name, length, paddings, seed):
    torch.manual_seed(seed)
    layer = build(name)
    inputs = random_inputs(layer, 1, length, dtype=torch.float32)

    def padded(frames: int, scale: float):
        junk = scale * torch.randn(1, frames, SIZE)
        mask = mask_of([length], length + frames)
        return layer(*(torch.cat([x, junk], 1) for x in inputs), mask)[:, :length]

    expected = layer(*inputs)
    for frames, scale in zip(paddings, (1.0, 1e4), strict=True):
        assert_near(padded(frames, scale), expected, 1e-5)


@every_mixer
@given(rows=st.lists(lengths, min_size=2, max_size=4), seed=seeds)
@settings(max_examples=15, deadline=None)
def test_batch_neighbours_change_nothing(name, rows, seed):
    torch.manual_seed(seed)
    layer = build(name)
    inputs = random_inputs(layer, len(rows), max(rows), dtype=torch.float32)
    together = layer(*inputs, mask_of(rows, max(rows)))
    for i, length in enumerate(rows):
        alone = layer(*(x[i : i + 1, :length] for x in inputs))
        assert_near(together[i : i + 1, :length], alone, 1e-5)


def step(layer, frames: int):
    inputs = random_inputs(layer, 2, frames, dtype=torch.float32)
    inputs = [x.requires_grad_() for x in inputs]
    mask = mask_of([frames, frames // 2], frames)
    return lambda: layer(*inputs, mask).sum().backward()


@pytest.mark.parametrize("name", [n for n in MIXERS if not n.startswith("full")])
def test_memory_is_linear_in_time(name):
    options = {"max_len": 4096} if name == "local-factorized" else {}
    layer = build(name, **options)
    short, long = (allocated(step(layer, frames)) for frames in (512, 4096))
    assert long.largest <= 8.2 * short.largest
    assert long.total <= 8.2 * short.total


@pytest.mark.parametrize("name", [n for n in MIXERS if n.startswith("full")])
def test_full_bias_is_never_spread_over_channels(name):
    frames = 512
    layer = build(name, max_len=frames)
    assert allocated(step(layer, frames)).largest <= frames**2
