"""torch's own tools on whole encoders."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from espnet_fastformer.encoder.input_layer import SUBSAMPLING
from tests.encoder.encoders import BLOCK_TYPES, ENCODERS, build, features

every_encoder = pytest.mark.parametrize("name", ENCODERS)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("input_layer", [*SUBSAMPLING, "linear", "embed", None])
@every_encoder
def test_parameters_are_contiguous(name, input_layer):
    """Safetensors and sharding refuse others."""
    for block_type in BLOCK_TYPES:
        encoder = build(name, input_layer=input_layer, block_type=block_type)
        for key, tensor in encoder.state_dict().items():
            assert tensor.is_contiguous(), key


@pytest.fixture
def mesh(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("every_layer", [False, True])
@pytest.mark.parametrize("name", [*ENCODERS, "aft-local-factorized"])
def test_sharded_parameters(name, every_layer, mesh):
    options = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
    if name == "aft-local-factorized":
        name, options["aft_bias"] = "aft-local", "factorized"
    whole = build(name, **options).train()
    sharded = copy.deepcopy(whole)
    layers = [m for m in sharded.modules() if list(m.parameters(recurse=False))]
    for layer in layers[::-1] if every_layer else sharded.encoders:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    batch = features([120, 70])
    for encoder in (whole, sharded):
        encoder(*batch)[0].square().sum().backward()
    for one, other in zip(sharded.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad.full_tensor(), other.grad)


class Output(torch.nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, xs_pad, ilens):
        return self.encoder(xs_pad, ilens)[:2]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@every_encoder
def test_trace_serves_other_lengths(name):
    encoder = Output(build(name))
    traced = torch.jit.trace(encoder, features([300, 300]), check_trace=False)
    for lengths in ([300, 200], [120, 90, 50], [900, 500]):
        batch = features(lengths)
        torch.testing.assert_close(
            traced(*batch), encoder(*batch), rtol=1e-4, atol=1e-5
        )


@every_encoder
def test_meta_device(name):
    xs_pad, ilens = features([300, 200])
    expected = build(name)(xs_pad, ilens)[0]
    output = build(name).to("meta")(xs_pad.to("meta"), ilens)[0]
    assert output.shape == expected.shape


@every_encoder
def test_gradients_of_torch_func(name):
    encoder = build(name)
    parameters = dict(encoder.named_parameters())
    batch = features([300, 200])

    def loss(parameters):
        return torch.func.functional_call(encoder, parameters, batch)[0].square().sum()

    gradients = torch.func.grad(loss)(parameters)
    loss(parameters).backward()
    for key, parameter in parameters.items():
        torch.testing.assert_close(
            gradients[key], parameter.grad, rtol=1e-3, atol=1e-4, msg=key
        )
