"""What the recipe adds to ESPnet3's training module."""

from types import SimpleNamespace

import pytest
import torch
from src import lightning_module as module


@pytest.fixture
def make(monkeypatch):
    """Make the module without what ESPnet3 makes it of."""

    def init(self, model, config):
        vars(self).update(model=model, config=config)

    monkeypatch.setattr(module.ESPnetLightningModule, "__init__", init)
    options = {"fit": {}, "init_param": [], "ignore_init_mismatch": False}

    def make(model=None, **config):
        config = {**options, "use_tf32": False, **config}
        return module.SharedBatchModule(model, SimpleNamespace(**config))

    before = torch.get_float32_matmul_precision()
    yield make
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("use_tf32", "precision"), [(True, "high"), (False, "highest")]
)
def test_tf32_is_a_choice(make, use_tf32, precision):
    torch.set_float32_matmul_precision("medium")
    make(use_tf32=use_tf32)
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize(
    ("keys", "parameters", "words"),
    [
        ("", None, "weights_only"),
        ("", {"weight": torch.zeros(3, 3)}, "size mismatch for weight"),
        ("::encodr", {"weight": torch.zeros(2, 2)}, "no attribute 'encodr'"),
    ],
)
def test_init_param_that_does_not_fit_is_named(make, tmp_path, keys, parameters, words):
    file = tmp_path / "other.pth"
    file.write_text("no parameters")
    if parameters is not None:
        torch.save(parameters, file)
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=f"(?s)--init_param {file}{keys}: .*{words}"):
        make(model, init_param=[f"{file}{keys}"])
    # A training that goes on looks at none.
    make(model, init_param=[f"{file}{keys}"], fit={"ckpt_path": "last.ckpt"})
