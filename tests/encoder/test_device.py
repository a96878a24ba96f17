"""Encoders on a GPU, or on the device that stands in for one, against the CPU."""

import copy

import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.layers.create_adapter import create_adapter

from espnet_fastformer.attention_weights import record_weights

from .encoders import BLOCK_TYPES, ENCODERS, FEATURES, build, features, in_turn

every_encoder = pytest.mark.parametrize("name", ENCODERS)
every_block = pytest.mark.parametrize("block_type", BLOCK_TYPES)
NO_DROPOUT = {
    "dropout_rate": 0.0,
    "positional_dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}
LENGTHS = [83, 60]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def moved(encoder: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    return copy.deepcopy(encoder).to(device)


def results(
    encoder: torch.nn.Module, xs_pad: torch.Tensor, lengths: torch.Tensor, **options
) -> dict[str, torch.Tensor]:
    """Outputs on real frames, and all gradients."""
    encoder.zero_grad()
    out, olens, _ = encoder(xs_pad, lengths, **options)
    out, intermediate = out if isinstance(out, tuple) else (out, [])
    is_real = torch.arange(out.size(1), device=out.device) < olens[:, None]
    outs = [x * is_real[..., None] for x in (out, *(x for _, x in intermediate))]
    # A sum of squares would be the same whatever comes out of a layer norm.
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(x.shape, generator=generator).to(x) for x in outs]
    sum((x * y).sum() for x, y in zip(outs, cotangents, strict=True)).backward()
    gradients = {k: p.grad for k, p in encoder.named_parameters() if p.grad is not None}
    assert gradients
    return (
        {"lengths": olens} | {f"output {i}": x for i, x in enumerate(outs)} | gradients
    )


def assert_same(
    actual: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    tolerance: float = 1e-4,
) -> None:
    """Equal, but for rounding: that of the largest entry where terms cancel."""
    assert actual.keys() == expected.keys()
    largest = max(float(x.detach().abs().max()) for x in expected.values())
    for key, value in expected.items():
        torch.testing.assert_close(
            actual[key].cpu(),
            value,
            rtol=tolerance,
            atol=0.1 * tolerance * max(1.0, largest),
            msg=lambda text, key=key: f"{key}: {text}",
        )


@every_encoder
@every_block
def test_output_and_gradients(name, block_type, accelerator):
    encoder = build(name, block_type=block_type, **NO_DROPOUT).train()
    xs_pad, lengths = features(LENGTHS)
    expected = results(encoder, xs_pad, lengths)
    there = moved(encoder, accelerator)
    on_device = xs_pad.to(accelerator)
    assert_same(results(there, on_device, lengths.to(accelerator)), expected)
    assert_same(results(there, on_device, lengths), expected)


@pytest.mark.parametrize(
    "input_layer", ["conv2d1", "conv2d6", "conv1d1", "conv1d3", "linear", None, "embed"]
)
def test_input_layers(input_layer, accelerator):
    encoder = build("aft-local", input_layer=input_layer, **NO_DROPOUT).train()
    xs_pad, lengths = features(LENGTHS)
    if input_layer == "embed":
        xs_pad = torch.randint(FEATURES, xs_pad.shape[:2])
    expected = results(encoder, xs_pad, lengths)
    actual = results(moved(encoder, accelerator), xs_pad.to(accelerator), lengths)
    assert_same(actual, expected)


@every_encoder
def test_checkpointing_draws_the_same_dropout_again(name, accelerator):
    xs_pad, lengths = (x.to(accelerator) for x in features(LENGTHS))
    encoder = build(name).train().to(accelerator)
    torch.manual_seed(1)
    expected = results(encoder, xs_pad, lengths)
    expected = {key: x.detach().cpu() for key, x in expected.items()}
    encoder.gradient_checkpoint_layers = [0, 1, 2]
    torch.manual_seed(1)
    assert_same(results(encoder, xs_pad, lengths), expected)


@every_encoder
def test_self_conditioning(name, accelerator):
    options = {"interctc_layer_idx": [1], "interctc_use_conditioning": True}
    encoder = build(name, **options, **NO_DROPOUT).train()
    encoder.conditioning_layer = torch.nn.Linear(5, 16)
    ctc = CTC(odim=5, encoder_output_size=16)
    xs_pad, lengths = features(LENGTHS)
    expected = results(encoder, xs_pad, lengths, ctc=ctc)
    assert "output 1" in expected
    xs_pad, lengths = xs_pad.to(accelerator), lengths.to(accelerator)
    encoder, ctc = moved(encoder, accelerator), ctc.to(accelerator)
    assert_same(results(encoder, xs_pad, lengths, ctc=ctc), expected)


@every_encoder
def test_adapters(name, accelerator):
    encoder = build(name, **NO_DROPOUT)
    linears = [k for k, m in encoder.named_modules() if type(m) is torch.nn.Linear]
    conf = {"rank": 2, "alpha": 4, "dropout_rate": 0.0, "target_modules": linears}
    create_adapter(encoder, "lora", conf)
    for key, parameter in encoder.train().named_parameters():
        if "lora_" in key:
            torch.nn.init.normal_(parameter, std=0.1)
    xs_pad, lengths = features(LENGTHS)
    expected = results(encoder, xs_pad, lengths)
    actual = results(moved(encoder, accelerator), xs_pad.to(accelerator), lengths)
    assert_same(actual, expected)


@every_encoder
def test_weights_are_recorded_on_the_cpu(name, accelerator):
    encoder = build(name)
    xs_pad, lengths = features(LENGTHS)
    with record_weights(encoder) as expected, torch.no_grad():
        encoder(xs_pad, lengths)
    encoder.to(accelerator)
    with record_weights(encoder) as actual, torch.no_grad():
        encoder(xs_pad.to(accelerator), lengths.to(accelerator))
    assert expected
    assert_same(actual, expected)


@every_encoder
def test_state_dict_from_and_to_the_cpu(name, accelerator):
    here, there = build(name), build(name).to(accelerator)
    there.load_state_dict(here.state_dict())
    assert {p.device.type for p in there.parameters()} == {accelerator.type}
    assert_same(there.state_dict(), here.state_dict(), tolerance=0.0)
    other = build(name)
    other.load_state_dict(there.state_dict())
    assert {p.device.type for p in other.parameters()} == {"cpu"}
    assert_same(other.state_dict(), here.state_dict(), tolerance=0.0)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "aft-full"])
def test_training_in_chunks_and_streams(name, accelerator):
    chunks = {"short_chunk_threshold": 1.0, "short_chunk_size": 5}
    options = chunks | {"dynamic_chunk_training": True, "block_size": 4}
    here = build(name, num_left_chunks=2, **options, **NO_DROPOUT).train()
    there = moved(here, accelerator)
    xs_pad, lengths = features(LENGTHS)
    on_device = xs_pad.to(accelerator)
    for _ in range(2):  # Both draw the same chunk sizes.
        expected = results(here, xs_pad, lengths)
        assert_same(results(there, on_device, lengths.to(accelerator)), expected)

    outs = []
    for encoder, stream in ((here, xs_pad), (there, on_device)):
        state, parts = None, []
        for part in stream.split(30, dim=1):
            is_final = part.size(1) < 30
            with torch.no_grad():
                out, _, state = encoder.eval().forward_infer(part, state, is_final)
            parts.append(out.cpu())
        outs.append(torch.cat(parts, dim=1))
    torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)


@every_encoder
@every_block
def test_host_looks_at_lengths_once(name, block_type, simulated):
    from tests.simulated_device import count

    encoder = build(name, block_type=block_type).train().to(simulated)
    xs_pad, here = features(LENGTHS)
    xs_pad, there = xs_pad.to(simulated), here.to(simulated)
    encoder(xs_pad, there)  # Makes the table of positions.
    for lengths, waits in ((there, 1), (here, 0)):
        with count() as counts:
            encoder(xs_pad, lengths)[0].sum().backward()
        assert counts.kernels.total() > 100
        assert counts.waits.total() == waits, counts.waits


@every_encoder
def test_padding_is_found_once_for_all_blocks(name, simulated):
    from tests.simulated_device import count

    # ESPnet's layers with convolutions find it again for each.
    encoder = build(name, block_type="transformer").to(simulated)
    xs_pad, lengths = (x.to(simulated) for x in features(LENGTHS))
    with count() as counts:
        encoder(xs_pad, lengths)
    assert counts.kernels["eq"] == 1


def test_host_looks_at_lengths_once_whatever_the_options(simulated):
    from tests.simulated_device import count

    options = {
        "gradient_checkpoint_layers": [1],
        "interctc_layer_idx": [1],
        "interctc_use_conditioning": True,
        "layer_drop_rate": 0.5,
        "dynamic_chunk_training": True,
        "short_chunk_threshold": 1.0,
        "short_chunk_size": 5,
    }
    encoder = build("aft-local", **options).train()
    encoder.conditioning_layer = torch.nn.Linear(5, 16)
    ctc = CTC(odim=5, encoder_output_size=16).to(simulated)
    xs_pad, lengths = (x.to(simulated) for x in features(LENGTHS))
    encoder.to(simulated)(xs_pad, lengths, ctc=ctc)
    for _ in range(3):
        with count() as counts:
            (out, _), _, _ = encoder(xs_pad, lengths, ctc=ctc)
            out.sum().backward()
        assert counts.waits.total() == 1, counts.waits


@pytest.mark.parametrize(
    "block_type, name, dtype",
    in_turn([torch.bfloat16, torch.float16], BLOCK_TYPES, ENCODERS),
)
def test_autocast(block_type, name, dtype, accelerator):
    encoder = build(name, block_type=block_type, output_size=32, **NO_DROPOUT).train()
    xs_pad, lengths = features(LENGTHS)
    expected = results(encoder, xs_pad, lengths)
    there = moved(encoder, accelerator)
    with torch.autocast(accelerator.type, dtype):
        actual = results(there, xs_pad.to(accelerator), lengths.to(accelerator))
    # Layer norm is the last step, which autocast runs in float32 on a GPU.
    assert {x.dtype for k, x in actual.items() if k != "lengths"} == {torch.float32}
    assert_same(
        {"output 0": actual["output 0"]}, {"output 0": expected["output 0"]}, 0.5
    )
    for key in expected:
        assert actual[key].isfinite().all(), key
    # Of the directions of all gradients together.
    of_all = [
        torch.cat(
            [x[k].detach().cpu().flatten() for k in dict(there.named_parameters())]
        )
        for x in (actual, expected)
    ]
    assert torch.cosine_similarity(*of_all, dim=0) > 0.99


@every_encoder
def test_autocast_keeps_long_sums_in_float32(name, accelerator):
    """Of float16 they would overflow."""
    encoder = build(name, num_blocks=1, pos_enc_layer_type="none", output_size=32)
    xs_pad, lengths = features([6000, 4000])
    with torch.no_grad():
        expected = moved(encoder, "cpu").double()(xs_pad.double(), lengths)[0]
        with torch.autocast(accelerator.type, torch.float16):
            there = encoder.to(accelerator)
            actual, olens, _ = there(xs_pad.to(accelerator), lengths.to(accelerator))
    for row, olen in enumerate(olens.tolist()):
        error = (actual[row, :olen].cpu() - expected[row, :olen]).abs()
        assert error.mean() < 0.05 and error.max() < 0.5


@every_encoder
def test_gradient_scaler_skips_infinite_gradients(name, accelerator):
    encoder = build(name).train().to(accelerator)
    xs_pad, lengths = (x.to(accelerator) for x in features(LENGTHS))
    scaler = torch.amp.GradScaler(accelerator.type, init_scale=2.0**10)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2)
    cotangent = torch.randn(2, 20, 16, device=accelerator)

    def step(factor: float) -> int:
        """Return how many parameters have changed."""
        before = [p.detach().clone() for p in encoder.parameters()]
        optimizer.zero_grad()
        with torch.autocast(accelerator.type, torch.float16):
            out, _, _ = encoder(xs_pad, lengths)
        loss = (out * cotangent[:, : out.size(1)]).mean() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert all(p.isfinite().all() for p in encoder.parameters())
        pairs = zip(before, encoder.parameters(), strict=True)
        return sum(not torch.equal(one, other) for one, other in pairs)

    assert step(torch.inf) == 0 and scaler.get_scale() == 2.0**9
    assert step(1.0) > 0.9 * len(list(encoder.parameters()))
    assert scaler.get_scale() == 2.0**9
