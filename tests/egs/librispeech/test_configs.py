"""What the recipe calls an experiment."""

import argparse
from pathlib import Path

import pytest

from .conftest import RECIPE_DIR


@pytest.fixture
def exp_tag(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPE_DIR))
    from src.configs import _exp_tag

    def exp_tag(*overrides: str) -> str:
        options = argparse.Namespace(
            asr_config=Path("train_asr.yaml"), speed_perturb_factors=[0.9, 1.0, 1.1]
        )
        return _exp_tag(options, "librispeech", "char", overrides)

    return exp_tag


def test_tag_names_what_changed(exp_tag):
    changes = ("--encoder_conf", "aft_type=conv", "--max_epoch", "30")
    assert exp_tag(*changes) == "train_asr_librispeech_char_encoder_confaft_typeconv_sp"
    assert exp_tag("--max_epoch", "30") == "train_asr_librispeech_char_sp"


def test_many_changes_make_a_name_that_a_file_can_have(exp_tag, tmp_path):
    rates = [f"--encoder_conf=dropout_rate_of_layer_{n}=0.1" for n in range(9)]
    tags = {exp_tag(*rates), exp_tag(*rates, "--optim_conf", "lr=0.1")}
    assert len(tags) == 2
    for tag in tags:
        assert tag.startswith("train_asr_librispeech_char_")
        (tmp_path / f"{tag}.zip").touch()
