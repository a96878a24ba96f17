"""What is said of a checkpoint that does not fit an encoder."""

import copy

import pytest
import torch

from espnet_fastformer import FastformerEncoder


def build() -> FastformerEncoder:
    return FastformerEncoder(
        8, output_size=8, attention_heads=2, cgmlp_linear_units=8, num_blocks=2
    )


def load_into(state: dict[str, torch.Tensor], caplog) -> list[str]:
    model = torch.nn.ModuleDict({"frontend": torch.nn.Linear(2, 2), "encoder": build()})
    model.load_state_dict(state, strict=False)
    return caplog.messages


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {f"encoder.{name}": value for name, value in build().state_dict().items()}


def test_nothing_where_all_is_there(state, caplog):
    assert load_into(state, caplog) == []
    assert copy.deepcopy(build()).load_state_dict(build().state_dict())
    assert caplog.messages == []


def test_parameters_of_another_name(state, caplog):
    state["encoder.norm.weight"] = state.pop("encoder.after_norm.weight")
    state["encoder.norm.bias"] = state.pop("encoder.after_norm.bias")
    assert load_into(state, caplog) == [
        f"2 of the {len(state)} parameters of FastformerEncoder are not in the "
        "checkpoint and stay as they are: after_norm.weight, after_norm.bias",
        "2 parameters of the checkpoint are not in FastformerEncoder and have no "
        "effect: encoder.norm.weight, encoder.norm.bias",
    ]


def test_no_more_than_the_first_names(state, caplog):
    (message,) = load_into({}, caplog)
    assert message.startswith(f"{len(state)} of the {len(state)} parameters of")
    assert message.endswith(f"and {len(state) - 5} more")


def test_parameters_that_were_filled_up_with_the_model_s_own(state, caplog):
    """ESPnet's ``--init_param`` does so."""
    model = torch.nn.ModuleDict({"encoder": build()})
    filled = model.state_dict()
    del state["encoder.after_norm.weight"]
    filled.update(state)
    model.load_state_dict(filled)
    (message,) = caplog.messages
    assert message.endswith("stay as they are: after_norm.weight")
