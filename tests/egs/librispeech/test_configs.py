"""What the recipe calls an experiment."""

import argparse
import copy
from pathlib import Path

from omegaconf import OmegaConf
from src.configs import _exp_tag, lasting_settings


def exp_tag(*overrides: str, speeds=(0.9, 1.0, 1.1)) -> str:
    options = argparse.Namespace(
        asr_config=Path("train_asr.yaml"), speed_perturb_factors=speeds
    )
    return _exp_tag(options, "librispeech", "char", overrides)


def test_tag_names_what_changed():
    changes = ("--encoder_conf", "aft_type=conv", "--max_epoch", "30")
    assert exp_tag(*changes) == "train_asr_librispeech_char_encoder_confaft_typeconv_sp"
    assert exp_tag("--max_epoch", "30") == "train_asr_librispeech_char_sp"


def test_tag_names_unusual_speeds():
    assert exp_tag(speeds=[1.1, 0.9, 1.0]) == "train_asr_librispeech_char_sp"
    assert exp_tag(speeds=[0.8, 1.0]) == "train_asr_librispeech_char_sp0.8_1.0"
    assert exp_tag(speeds=None) == "train_asr_librispeech_char"


def test_settings_that_last_know_no_places_and_machines():
    config = {
        "seed": 0,
        "exp_dir": "/here/exp",
        "model": {"token_list": "/here/tokens.txt"},
        "optimizer": {"lr": 0.1},
        "dataset": {"train": [{"name": "a", "data_src_args": {"source_dir": "/here"}}]},
        "trainer": {
            "accelerator": "cpu",
            "max_epochs": 1,
            "accumulate_grad_batches": 1,
            "gradient_clip_val": 5.0,
        },
    }
    elsewhere = copy.deepcopy(config)
    elsewhere["exp_dir"] = "/there/exp"
    elsewhere["model"]["token_list"] = "/there/tokens.txt"
    elsewhere["dataset"]["train"][0]["data_src_args"]["source_dir"] = "/there"
    elsewhere["trainer"] |= {"accelerator": "gpu", "max_epochs": 9}
    settings = lasting_settings(OmegaConf.create(config))
    assert settings["optimizer.lr"] == 0.1
    assert settings["dataset.train.0.name"] == "a"
    assert lasting_settings(OmegaConf.create(elsewhere)) == settings
    elsewhere["trainer"]["accumulate_grad_batches"] = 2
    assert lasting_settings(OmegaConf.create(elsewhere)) != settings


def test_many_changes_make_a_name_that_a_file_can_have(tmp_path):
    rates = [f"--encoder_conf=dropout_rate_of_layer_{n}=0.1" for n in range(9)]
    tags = {exp_tag(*rates), exp_tag(*rates, "--optim_conf", "lr=0.1")}
    assert len(tags) == 2
    for tag in tags:
        assert tag.startswith("train_asr_librispeech_char_")
        (tmp_path / f"{tag}.zip").touch()
