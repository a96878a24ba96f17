"""All layers for CPUs as one switch."""

import pytest
import torch

from espnet_fastformer import cpu
from tests.encoder.encoders import BLOCK_TYPES, ENCODERS, build, features


def kinds(encoder) -> set[type]:
    return {type(module) for module in encoder.modules()}


@pytest.mark.parametrize("block_type", BLOCK_TYPES)
@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_without_them_computes_the_same(name, block_type):
    torch.manual_seed(0)
    fast = build(name, block_type=block_type)
    plain = build(name, block_type=block_type, use_cpu_layers=False)
    assert kinds(fast) & set(cpu.CPU_LAYERS)
    assert not kinds(plain) & set(cpu.CPU_LAYERS)
    assert list(plain.state_dict()) == list(fast.state_dict())
    plain.load_state_dict(fast.state_dict())
    batch = features([150, 97])
    outputs = []
    for encoder in (plain, fast):
        out, olens, _ = encoder(*batch)
        real = torch.arange(out.size(1)) < olens[:, None]
        outputs.append(out * real.unsqueeze(2))
        outputs[-1].square().sum().backward()
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    for one, other in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)
    if plain.no_streaming is None:
        for encoder in (plain, fast):
            encoder.decoding_chunk_size = 4
        torch.testing.assert_close(
            *(encoder(*batch)[0] for encoder in (plain, fast)), rtol=1e-4, atol=1e-5
        )
