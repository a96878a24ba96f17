"""ESPnet2's training command on a few recordings."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile
import yaml

TEXTS = {
    "utt1": ("A BAD CAB", 1.2),
    "utt2": ("DAB", 0.7),
    "utt3": ("FED A CAGE", 1.4),
    "utt4": ("BEAD", 0.9),
    "utt5": ("HE HAD A BAG", 1.1),
    "utt6": ("JADE", 0.8),
}
TOKENS = ["<blank>", "<unk>", "<space>", *"ABCDEFGHIJ", "<sos/eos>"]
ENCODER = {
    "output_size": 16,
    "attention_heads": 2,
    "cgmlp_linear_units": 16,
    "cgmlp_conv_kernel": 7,
    "num_blocks": 3,
    "input_layer": "conv2d2",
    "dropout_rate": 0.0,
    "positional_dropout_rate": 0.0,
}
CONFIG = {
    "ngpu": 0,
    "num_workers": 0,
    "token_type": "char",
    "token_list": TOKENS,
    "frontend": "default",
    "frontend_conf": {"n_fft": 512, "hop_length": 160, "n_mels": 20},
    "normalize": "utterance_mvn",
    "encoder": "fastformer",
    "encoder_conf": ENCODER,
    "model_conf": {"ctc_weight": 1.0},
    "batch_type": "unsorted",
    # Of which two processes get shares of different sizes.
    "batch_size": 3,
    "max_epoch": 1,
    "optim": "sgd",
    "optim_conf": {"lr": 0.001},
    "use_matplotlib": False,
    "best_model_criterion": [["valid", "loss", "min"]],
}


def write_data(directory: Path) -> list[str]:
    """Write recordings that end in silence; return the options that name them."""
    directory.mkdir()
    random = np.random.default_rng(0)
    lines = {"wav.scp": [], "text": [], "speech_shape": []}
    for utt_id, (text, seconds) in TEXTS.items():
        speech = 0.1 * random.standard_normal(int(16000 * seconds))
        speech[-512:] = 0
        wav = directory / f"{utt_id}.wav"
        soundfile.write(wav, speech, 16000)
        lines["wav.scp"].append(f"{utt_id} {wav}\n")
        lines["text"].append(f"{utt_id} {text}\n")
        lines["speech_shape"].append(f"{utt_id} {len(speech)}\n")
    for name, content in lines.items():
        (directory / name).write_text("".join(content))
    return [
        option
        for part in ("train", "valid")
        for option in (
            *(f"--{part}_shape_file", str(directory / "speech_shape")),
            *(f"--{part}_data_path_and_name_and_type",),
            f"{directory / 'wav.scp'},speech,sound",
            *(f"--{part}_data_path_and_name_and_type",),
            f"{directory / 'text'},text,text",
        )
    ]


def options(data: list[str], output_dir: Path, **config) -> list[str]:
    """Options of asr_train for `CONFIG` with changes."""
    config_file = output_dir.with_suffix(".yaml")
    config_file.write_text(yaml.safe_dump(CONFIG | config))
    return [*data, "--config", str(config_file), "--output_dir", str(output_dir)]


def start(*command: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "espnet2.bin.asr_train", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
