"""torch's own tools on every mixer."""

import pytest
import torch
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm
from torch.utils._python_dispatch import TorchDispatchMode

from espnet_fastformer.layers.chunks import Chunks, in_chunks

from .checks import MIXERS, SIZE, assert_near, build, mask_of, plain, random_inputs

every_mixer = pytest.mark.parametrize("name", MIXERS)
every_length = pytest.mark.parametrize("frames", [5, 70, 200])


class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def twice_the_parameters(layer):
    for module, name in parameters_of(layer, least_dim=1):
        parametrize.register_parametrization(module, name, Twice())


def parameters_of(layer, least_dim: int, kind=torch.nn.Module):
    return [
        (module, name)
        for module in layer.modules()
        if isinstance(module, kind)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() >= least_dim
    ]


def on_matrices(tool, kind=torch.nn.Module):
    def apply(layer):
        for module, name in parameters_of(layer, least_dim=2, kind=kind):
            tool(module, name)

    return apply


def on_linear_maps(tool):
    def apply(layer):
        for module in list(layer.modules()):
            if isinstance(module, torch.nn.Linear):
                tool(module)

    return apply


def replace_forward(linear):
    forward = linear.forward
    linear.forward = lambda x: 2 * forward(x)


def prune_all(layer):
    for module, name in parameters_of(layer, least_dim=1):
        prune.random_unstructured(module, name, 0.3)


TOOLS = {
    "weight_norm": on_matrices(parametrizations.weight_norm),
    "weight_norm with hooks": on_matrices(weight_norm),
    "orthogonal": on_matrices(parametrizations.orthogonal, torch.nn.Linear),
    "pruning": prune_all,
    "a parametrisation": twice_the_parameters,
    "forward hooks": on_linear_maps(
        lambda linear: linear.register_forward_hook(lambda _, args, out: 2 * out)
    ),
    "forward pre-hooks": on_linear_maps(
        lambda linear: linear.register_forward_pre_hook(lambda _, args: 2 * args[0])
    ),
    "a forward of its own": on_linear_maps(replace_forward),
}


def check_steps(layer, frames: int):
    """Steps of training, and one of inference, against the plain definition."""
    inputs = random_inputs(layer, 2, frames)
    mask = mask_of([frames, frames // 2], frames)
    cotangent = torch.randn_like(inputs[0])
    parameters = dict(layer.named_parameters())
    for _ in range(2):
        layer(*inputs, mask).backward(cotangent)
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.mul_(0.9)
    outputs = layer(*inputs, mask), plain(layer, *inputs, mask=mask)
    assert_near(*outputs, 1e-9)
    actual, expected = (
        torch.autograd.grad(y, list(parameters.values()), cotangent, retain_graph=True)
        for y in outputs
    )
    for key, one, other in zip(parameters, actual, expected, strict=True):
        assert one.isfinite().all(), key
        assert_near(one, other, 1e-9)
    layer.eval()
    with torch.no_grad():
        assert_near(layer(*inputs, mask), plain(layer, *inputs, mask=mask), 1e-9)


# What is short has a form of its own in the folded mixer alone.
@pytest.mark.parametrize(
    "name, frames", [*((name, 70) for name in MIXERS), ("fastformer-folded", 5)]
)
@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_tool_adds_is_computed(name, tool, frames):
    layer = build(name).double()
    TOOLS[tool](layer)
    check_steps(layer, frames)


@every_mixer
def test_spectral_norm(name):
    layer = build(name).double()
    on_matrices(parametrizations.spectral_norm)(layer)
    layer.eval()  # In training each use of a weight changes it.
    inputs = random_inputs(layer, 2, 70)
    assert_near(layer(*inputs), plain(layer, *inputs), 1e-9)


@pytest.mark.parametrize("where", ["forward", "forward_pre", "full_backward"])
def test_hooks_of_all_modules_see_fastformers_maps(where):
    layer = build("fastformer-folded").eval()
    x = torch.randn(2, 70, SIZE, requires_grad=True)
    seen = []
    register = getattr(torch_module, f"register_module_{where}_hook")
    handle = register(lambda module, *_: seen.append(module))
    try:
        layer(x).sum().backward()
    finally:
        handle.remove()
    assert set(layer.children()) - {layer.dropout} <= set(seen)


def replicate(layer):
    """What torch.nn.parallel.replicate makes for each device: no parameters."""
    twins = {m: m._replicate_for_data_parallel() for m in layer.modules()}
    for module, twin in twins.items():
        for name, child in module.named_children():
            setattr(twin, name, twins[child])
        for name, parameter in module.named_parameters(recurse=False):
            setattr(twin, name, parameter.clone())
    return twins[layer]


@every_mixer
def test_replica_equals_the_layer(name):
    layer = build(name)
    inputs = random_inputs(layer, 2, 70, dtype=torch.float32)
    replica = replicate(layer)
    assert not list(replica.parameters())
    results = []
    for module in (replica, layer):
        layer.zero_grad()
        output = module(*inputs)
        output.square().sum().backward()
        results.append([output, *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(*results)


def test_dropout_alone_in_training():
    """As for uncertainty from many passes at inference."""
    layer = build("fastformer-folded", dropout_rate=0.5).eval()
    x = random_inputs(layer, 1, 70, dtype=torch.float32)[0]
    layer.dropout.train()
    # The transform's output is dropped as well: each frame has zeros of its own.
    dropped = (layer(x) - layer.query(x)).abs() < 1e-6
    assert 0.3 < dropped.float().mean() < 0.7
    assert not (dropped == dropped[:, :1]).all()


@every_mixer
@every_length
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_backward_inside_autocast(name, frames, dtype, device):
    check_backward_inside_autocast(build(name, device), frames, dtype, device)


@pytest.mark.parametrize("name", ["fastformer", "simple", "conv", "local-offset"])
def test_backward_of_chunks_inside_autocast(name, device):
    layer = build(name, device)
    with in_chunks(Chunks(10)):
        check_backward_inside_autocast(layer, 70, torch.float16, device)


def check_backward_inside_autocast(layer, frames, dtype, device):
    inputs = random_inputs(layer, 2, frames, device, torch.float32)
    inputs = [x.requires_grad_() for x in inputs]
    mask = mask_of([frames, frames // 2], frames, device)
    sources = {f"input {i}": x for i, x in enumerate(inputs)}
    sources |= dict(layer.named_parameters())
    results = []
    for is_inside in (True, False):
        with torch.autocast(device.type, dtype):
            loss = layer(*inputs, mask).float().square().sum()
        with torch.autocast(device.type, dtype, enabled=is_inside):
            grads = torch.autograd.grad(loss, list(sources.values()))
        results.append(dict(zip(sources, grads, strict=True)))
    for key, expected in results[1].items():
        like = results[1].get(key.replace(".bias", ".weight"))
        assert_near(results[0][key], expected, 0.03, like)


@every_mixer
@every_length
def test_transforms(name, frames):
    layer = build(name).double()
    inputs = random_inputs(layer, 2, frames)
    mask = mask_of([frames, frames // 2], frames)

    def call(*inputs):
        return layer(*inputs, mask)

    leaves = [x.clone().requires_grad_() for x in inputs]
    cotangent = torch.randn_like(inputs[0])
    expected = torch.autograd.grad(call(*leaves), leaves, cotangent)
    output, pull_back = torch.func.vjp(call, *inputs)
    actual = pull_back(cotangent)
    torch.testing.assert_close(output, call(*inputs))
    for one, other in zip(actual, expected, strict=True):
        assert_near(one, other, 1e-9)

    tangents = [torch.randn_like(x) for x in inputs]
    _, pushed = torch.func.jvp(call, tuple(inputs), tuple(tangents))
    products = [(x * y).sum() for x, y in zip(actual, tangents, strict=True)]
    torch.testing.assert_close((pushed * cotangent).sum(), sum(products))

    both = [torch.stack([x, 2 * x]) for x in inputs]
    each = torch.stack([call(*inputs), call(*(2 * x for x in inputs))])
    torch.testing.assert_close(torch.func.vmap(call)(*both), each)


@pytest.mark.parametrize(
    "name", ["fastformer", "fastformer-folded", "conv", "full-dense"]
)
def test_second_derivatives(name):
    layer = build(name).double()
    inputs = random_inputs(layer, 1, 4)

    def loss(x):
        return layer(x, *inputs[1:]).square().sum()

    x, direction = inputs[0], torch.randn_like(inputs[0])
    _, actual = torch.func.jvp(torch.func.grad(loss), (x,), (direction,))
    step = 1e-5 * direction
    gradient = torch.func.grad(loss)
    expected = (gradient(x + step) - gradient(x - step)) / 2e-5
    assert_near(actual, expected, 1e-6)


@every_mixer
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trace_serves_other_lengths(name):
    layer = build(name).eval()

    def arguments(lengths):
        frames = max(lengths)
        inputs = random_inputs(layer, len(lengths), frames, dtype=torch.float32)
        return *inputs, mask_of(lengths, frames)

    traced = torch.jit.trace(layer, arguments([70, 30]), check_trace=False)
    # The tables of a factorised bias by absolute position are cut to what was traced.
    others = [[70, 70]] if name == "local-factorized" else [[5, 3, 1], [300, 200]]
    for lengths in others:
        batch = arguments(lengths)
        assert_near(traced(*batch), layer(*batch), 1e-5)


@every_mixer
@every_length
def test_meta_device(name, frames):
    layer = build(name).to("meta")
    inputs = random_inputs(layer, 2, frames, "meta", torch.float32)
    output = layer(*inputs, mask_of([frames, 1], frames).to("meta"))
    assert output.shape == inputs[0].shape
    output.sum().backward()
    assert all(p.grad.shape == p.shape for p in layer.parameters())


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "mm" in func.__name__
        return func(*args, **(kwargs or {}))


@every_mixer
def test_products_off_the_cpu_do_not_grow_with_the_batch(name):
    """Each is a kernel to start."""
    counts = []
    for batch in (2, 9):
        layer = build(name).to("meta")
        inputs = random_inputs(layer, batch, 200, "meta", torch.float32)
        with Products() as products:
            layer(*inputs).sum().backward()
        counts.append(products.count)
    assert counts[0] == counts[1]
