"""What is recorded of a model while it runs, and what ESPnet gets to plot of it."""

import logging

import pytest
import torch
from espnet2.legacy.nets.pytorch_backend.transformer.attention import (
    MultiHeadedAttention,
)
from espnet2.main_funcs.calculate_all_attentions import calculate_all_attentions

from espnet_fastformer.attention_weights import (
    extend_calculate_all_attentions,
    record_weights,
)
from espnet_fastformer.layers.aft import AFT
from tests.layers.checks import HEADS, SIZE, build

KINDS = {
    "fastformer": {"alpha": (HEADS, 6), "beta": (HEADS, 6)},
    "full-factorized": {"key_weights": (SIZE, 6), "position_bias": (1, 6, 6)},
    "local-offset": {"key_weights": (SIZE, 6), "position_bias": (1, 6, 6)},
    "simple": {"key_weights": (SIZE, 6)},
    "conv": {"key_weights": (HEADS, 6), "position_bias": (HEADS, 6, 6)},
}


class Model(torch.nn.Module):
    """Called as ESPnet's models are."""

    def __init__(self, name: str):
        super().__init__()
        self.mixer = build(name)
        self.attention = MultiHeadedAttention(2, SIZE, 0.0)

    def forward(self, x, x_lengths):
        mask = (torch.arange(x.size(1)) < x_lengths[:, None]).unsqueeze(1)
        inputs = (x, x, x) if isinstance(self.mixer, AFT) else (x,)
        return self.attention(x, x, self.mixer(*inputs, mask=mask), mask)


def count_hooks(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return {"x": torch.randn(2, 6, SIZE), "x_lengths": torch.tensor([6, 4])}


@pytest.mark.parametrize("name", KINDS)
def test_every_forward_pass_is_recorded_until_the_end(name, batch):
    model = Model(name)
    with record_weights(model) as recorded:
        assert recorded == {}
        model(**batch)
        first = {kind: weights.clone() for kind, weights in recorded.items()}
        x = batch["x"].flip(0)
        model(x, batch["x_lengths"])
    inputs = [x] * (3 if isinstance(model.mixer, AFT) else 1)
    mask = torch.tensor([[[1] * 6], [[1] * 4 + [0] * 2]])
    expected = model.mixer.attention_weights(*inputs, mask)
    assert recorded.keys() == {f"mixer.{kind}" for kind in expected}
    for kind, weights in expected.items():
        torch.testing.assert_close(recorded[f"mixer.{kind}"], weights)
        assert not recorded[f"mixer.{kind}"].requires_grad
        assert not recorded[f"mixer.{kind}"].equal(first[f"mixer.{kind}"])
    recorded.clear()
    model(**batch)
    assert recorded == {}
    assert count_hooks(model) == 0


@pytest.mark.parametrize("name", KINDS)
def test_espnet_gets_each_utterance_without_padding(name, batch):
    model = Model(name)
    attentions = calculate_all_attentions(model, batch)
    assert attentions.keys() == {"attention"} | {f"mixer.{k}" for k in KINDS[name]}
    assert [tuple(a.shape) for a in attentions["attention"]] == [(2, 6, 6), (2, 4, 4)]
    for kind, shape in KINDS[name].items():
        whole, short = attentions[f"mixer.{kind}"]
        assert whole.shape == shape
        assert short.shape == tuple(4 if size == 6 else size for size in shape)
        if kind != "position_bias":
            for weights in (whole, short):
                torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
    if "position_bias" in KINDS[name]:
        bias = model.mixer.position_bias_matrix(6)
        torch.testing.assert_close(attentions["mixer.position_bias"][0], bias)
    assert count_hooks(model) == 0


def test_streams_of_one_utterance_stay_together(batch):
    class TwoSpeakers(Model):
        def forward(self, x, x_lengths):
            super().forward(x.repeat(2, 1, 1), x_lengths.repeat(2))

    attentions = calculate_all_attentions(TwoSpeakers("fastformer"), batch)
    for name in ("mixer.alpha", "mixer.beta"):
        assert [w.shape for w in attentions[name]] == [(2, HEADS, 6), (2, HEADS, 4)]


def test_what_cannot_be_shown_is_left_out(batch, monkeypatch, caplog):
    model = Model("full-factorized")

    def fail(frames):
        raise MemoryError("too many pairs")

    monkeypatch.setattr(model.mixer, "position_bias_matrix", fail)
    with caplog.at_level(logging.WARNING):
        assert calculate_all_attentions(model, batch).keys() == {"attention"}
    assert "no picture of AFTFull: MemoryError: too many pairs" in caplog.text
    assert count_hooks(model) == 0


def test_an_error_of_the_model_is_passed_on(batch):
    model = Model("simple")
    with pytest.raises(RuntimeError, match="shape|size"):
        calculate_all_attentions(model, {**batch, "x": batch["x"][..., :3]})
    # ESPnet leaves its own hook on every module.
    assert {len(module._forward_hooks) for module in model.modules()} == {1}


def test_extending_twice_changes_nothing():
    assert extend_calculate_all_attentions(calculate_all_attentions) is (
        calculate_all_attentions
    )
