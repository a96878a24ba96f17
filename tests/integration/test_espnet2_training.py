"""What espnet2.bin.asr_train and Speech2Text make of data as it should not be."""

import contextlib
import logging
import resource
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from espnet2.bin.asr_inference import Speech2Text
from espnet2.legacy.nets.pytorch_backend.transformer.subsampling import TooShortUttError
from espnet2.tasks.asr import ASRTask
from torch._dynamo.testing import CompileCounterWithBackend

from espnet_fastformer import register

FS = 16000
TOKENS = ["<blank>", "<unk>", "<space>", *"ABCDE", "<sos/eos>"]
CONFIG = {
    "token_type": "char",
    "token_list": TOKENS,
    "frontend_conf": {"n_fft": 512, "hop_length": 160, "n_mels": 20},
    "encoder_conf": {
        "output_size": 16,
        "attention_heads": 2,
        "cgmlp_linear_units": 16,
        "cgmlp_conv_kernel": 3,
        "num_blocks": 1,
    },
    "model_conf": {"ctc_weight": 1.0},
    "batch_type": "sorted",
    "batch_size": 2,
    "valid_batch_size": 1,
    "num_workers": 0,
    "max_epoch": 2,
    "optim": "adam",
    "best_model_criterion": [["valid", "loss", "min"]],
    "use_tensorboard": False,
    "num_att_plot": 0,
}

register()


def tone(seconds: float, fs: int = FS) -> np.ndarray:
    time = np.arange(round(seconds * fs)) / fs
    return (0.3 * np.sin(2 * np.pi * (300 + 200 * time) * time)).astype("float32")


def stereo(seconds: float) -> np.ndarray:
    return np.stack([tone(seconds), tone(seconds)], axis=1)


def train(
    directory: Path, encoder: str, odd: np.ndarray, text: str = "AB", fs=FS, **config
):
    """Train on two good utterances and an odd one, and return where."""
    utterances = {"good1": tone(0.5), "good2": tone(0.6), "odd": odd}
    for name, samples in utterances.items():
        rate = fs if name == "odd" else FS
        soundfile.write(directory / f"{name}.wav", samples, rate, "FLOAT")
    data = {
        "wav.scp": {name: directory / f"{name}.wav" for name in utterances},
        "text": {"good1": "A CAB", "good2": "BED", "odd": text},
        "speech_shape": {name: len(x) or 1 for name, x in utterances.items()},
    }
    for file, lines in data.items():
        content = "".join(f"{name} {value}\n" for name, value in lines.items())
        (directory / file).write_text(content)
    config = CONFIG | {"encoder": encoder} | config
    (directory / "train.yaml").write_text(yaml.safe_dump(config))
    files = (f"{directory}/wav.scp,speech,sound", f"{directory}/text,text,text")
    options = [
        "--config",
        f"{directory}/train.yaml",
        "--output_dir",
        f"{directory}/exp",
    ]
    for phase in ("train", "valid"):
        for file in files:
            options += [f"--{phase}_data_path_and_name_and_type", file]
        options += [f"--{phase}_shape_file", f"{directory}/speech_shape"]
    ASRTask.main(cmd=options)
    return directory / "exp"


def recognize(exp: Path, samples: np.ndarray) -> str:
    speech2text = Speech2Text(
        exp / "config.yaml",
        exp / "valid.loss.ave.pth",
        beam_size=2,
        ctc_weight=1.0,
        maxlenratio=-5,
    )
    return speech2text(samples)[0][0]


@pytest.mark.parametrize(
    "encoder, odd, options",
    [
        pytest.param("fastformer", np.sign(tone(0.5)), {}, id="clipped"),
        pytest.param("aft", 100 * tone(0.5), {}, id="loud"),
        pytest.param("fastformer", 0 * tone(0.5), {}, id="silent"),
        pytest.param("aft", tone(10), {}, id="long"),
        pytest.param(
            "fastformer", tone(0.1), {"text": "FAR TOO MUCH TEXT"}, id="short"
        ),
        pytest.param("aft", stereo(0.5), {"batch_size": 1}, id="stereo"),
        pytest.param(
            "fastformer",
            stereo(0.5),
            {"preprocessor_conf": {"force_single_channel": True}},
            id="stereo-among-mono",
        ),
        pytest.param("aft", tone(0.5), {"text": "X Ü ☃"}, id="unknown-characters"),
        pytest.param("fastformer", tone(0.5), {"text": ""}, id="no-text"),
    ],
)
def test_odd_data_that_can_be_learned_from(encoder, odd, options, tmp_path):
    exp = train(tmp_path, encoder, odd, **options)
    model = torch.load(exp / "valid.loss.ave.pth", weights_only=True)
    assert all(value.isfinite().all() for value in model.values())
    assert isinstance(recognize(exp, odd), str)


@pytest.mark.parametrize(
    "encoder, seconds, frames",
    [("fastformer", 0.05, 6), ("aft", 0, 1)],
    ids=["50ms", "empty"],
)
def test_too_short_audio(encoder, seconds, frames, tmp_path, caplog):
    exp = train(tmp_path, encoder, tone(seconds), valid_batch_size=2)
    model = torch.load(exp / "valid.loss.ave.pth", weights_only=True)
    assert all(value.isfinite().all() for value in model.values())
    words = f"has {frames} frames and is too short for subsampling"
    assert caplog.text.count(words) == 1
    with pytest.raises(TooShortUttError, match="needs at least 7 frames"):
        recognize(exp, tone(0.05))


# What makes batches and features of audio knows no encoder.
@pytest.mark.parametrize(
    "odd, options, words",
    [
        pytest.param(
            tone(0.5, 8000),
            {"fs": 8000},
            "Sampling rates are mismatched: 16000 != 8000",
            id="8kHz",
        ),
        pytest.param(stereo(0.5), {}, r"\[8000, 2\]", id="stereo-among-mono"),
        pytest.param(tone(0), {"batch_size": 1}, r"\[1, 1, 0\]", id="empty-alone"),
    ],
)
def test_audio_of_another_kind_ends_the_training(odd, options, words, tmp_path):
    with pytest.raises(RuntimeError, match=words):
        train(tmp_path, "aft", odd, **options)
    assert not list(tmp_path.glob("exp/*.pth"))


@pytest.mark.slow
def test_compiled_training_gives_the_same_model(tmp_path):
    counter = CompileCounterWithBackend("aot_eager")
    models = []
    for name, option in (("plain", {}), ("compiled", {"compile": True})):
        (tmp_path / name).mkdir()
        dropout = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
        with torch.compiler.set_stance("default", force_backend=counter):
            exp = train(
                tmp_path / name,
                "fastformer",
                tone(0.9),
                encoder_conf=CONFIG["encoder_conf"] | dropout | option,
                optim="sgd",
                optim_conf={"lr": 0.01},
            )
        models.append(torch.load(exp / "valid.loss.ave.pth", weights_only=True))
        assert bool(counter.frame_count) == bool(option)
    torch.testing.assert_close(*models, rtol=1e-3, atol=1e-5)
    assert isinstance(recognize(exp, tone(0.5)), str)


@contextlib.contextmanager
def address_space(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.slow
def test_an_hour_ends_the_training_whatever_the_encoder(tmp_path):
    # ESPnet's frontend masks padding by a table of (T + 1)² bytes.
    words = r"can't allocate memory: you tried to allocate 129\d{9} bytes"
    hour = np.tile(tone(60), 60)
    with address_space(2**35), pytest.raises(RuntimeError, match=words):
        train(tmp_path, "aft", hour, batch_type="numel", batch_bins=100_000)
    assert not list(tmp_path.glob("exp/*.pth"))


def test_audio_that_is_no_number_is_skipped_with_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        exp = train(tmp_path, "aft", tone(0.5) * np.nan)
    assert "The grad norm is nan. Skipping updating the model" in caplog.text
    model = torch.load(exp / "valid.loss.ave.pth", weights_only=True)
    assert all(value.isfinite().all() for value in model.values())
