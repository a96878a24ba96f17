"""What the recipe adds to ESPnet3's training module."""

from types import SimpleNamespace

import pytest
import torch
from src import lightning_module as module


@pytest.mark.parametrize(
    ("use_tf32", "precision"), [(True, "high"), (False, "highest")]
)
def test_tf32_is_a_choice(monkeypatch, use_tf32, precision):
    monkeypatch.setattr(module.ESPnetLightningModule, "__init__", lambda *_: None)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        module.SharedBatchModule(None, SimpleNamespace(use_tf32=use_tf32))
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
