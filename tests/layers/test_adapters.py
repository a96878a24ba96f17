"""ESPnet's LoRA on every mixer, against the low-rank update written out."""

import copy

import pytest
import torch
from espnet2.asr.layers.fastformer import FastSelfAttention as ESPnetFastSelfAttention
from espnet2.layers.create_adapter import create_adapter
from torch.func import functional_call

from espnet_fastformer.cpu.fastformer import FoldedFastSelfAttention

from .checks import HEADS, MIXERS, SIZE, assert_near, build, mask_of, random_inputs

RANK = 2


def adapt(layer: torch.nn.Module, dropout_rate: float = 0.0) -> torch.nn.Module:
    """Adapt all linear maps of a copy, with an update that is not zero."""
    layer = copy.deepcopy(layer)
    targets = [n for n, m in layer.named_modules() if isinstance(m, torch.nn.Linear)]
    conf = {"rank": RANK, "alpha": 4, "dropout_rate": dropout_rate}
    create_adapter(layer, "lora", {**conf, "target_modules": targets})
    layer.train()
    for name, parameter in layer.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    return layer.double()


def with_update(layer: torch.nn.Module, adapted: torch.nn.Module) -> dict:
    """Parameters of `layer` with the low-rank update added to each weight."""
    parameters = {name: p for name, p in adapted.named_parameters()}
    return {
        name: parameters[name]
        if name.removesuffix("weight") + "lora_A" not in parameters
        else parameters[name]
        + 4
        / RANK
        * parameters[name.removesuffix("weight") + "lora_B"]
        @ parameters[name.removesuffix("weight") + "lora_A"]
        for name in dict(layer.named_parameters())
    }


@pytest.mark.parametrize("frames", [5, 70])
@pytest.mark.parametrize("name", MIXERS)
def test_lora_is_a_low_rank_update(name, frames):
    layer = build(name).double()
    adapted = adapt(layer)
    inputs = random_inputs(layer, 2, frames)
    mask = mask_of([frames, frames // 2], frames)
    expected = functional_call(layer, with_update(layer, adapted), (*inputs, mask))
    actual = adapted(*inputs, mask)
    assert_near(actual, expected, 1e-9)
    trained = [p for n, p in adapted.named_parameters() if "lora_" in n]
    assert len(trained) >= 6
    cotangent = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(actual, trained, cotangent),
        torch.autograd.grad(expected, trained, cotangent),
        strict=True,
    ):
        assert_near(one, other, 1e-9)
    # loralib adds the update to the weights in eval, and takes it away again.
    assert_near(adapted.eval()(*inputs, mask), expected, 1e-9)
    assert_near(adapted.train()(*inputs, mask), expected, 1e-9)


def test_dropout_of_an_adapter_is_drawn_for_each_frame():
    layer = FoldedFastSelfAttention(SIZE, HEADS, 0.0).double()
    theirs = ESPnetFastSelfAttention(SIZE, HEADS, 0.0).double()
    theirs.load_state_dict(layer.state_dict())
    ours = adapt(layer, dropout_rate=0.5)
    theirs = adapt(theirs, dropout_rate=0.5)
    theirs.load_state_dict(ours.state_dict())
    x = random_inputs(layer, 2, 70)[0]
    mask = mask_of([70, 33], 70)
    outputs = []
    for adapted in (ours, theirs):
        torch.manual_seed(1)
        outputs.append(adapted(x, mask))
    torch.testing.assert_close(*outputs)


def test_lora_under_autocast_to_bfloat16():
    """ESPnet's own module has no mask for it."""
    adapted = adapt(FoldedFastSelfAttention(SIZE, HEADS, 0.0)).float()
    x = torch.randn(2, 70, SIZE)
    mask = mask_of([70, 33], 70)
    expected = adapted(x, mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert_near(adapted(x.bfloat16(), mask), expected, 0.02)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MIXERS)
def test_lora_in_bfloat16(name, training):
    adapted = adapt(build(name)).float().train(training)
    inputs = random_inputs(adapted, 2, 70, dtype=torch.float32)
    mask = mask_of([70, 33], 70)
    expected = adapted(*inputs, mask)
    actual = adapted.bfloat16()(*(x.bfloat16() for x in inputs), mask)
    assert_near(actual.float(), expected, 0.03)
