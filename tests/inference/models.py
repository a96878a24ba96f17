"""Experiments of random weights, as ESPnet's training leaves them."""

from pathlib import Path

import numpy as np
import torch
import yaml
from espnet2.tasks.asr import ASRTask

from espnet_fastformer import register

CHARACTERS = ["<blank>", "<unk>", "<space>", *"ABCDEFGHIJ", "<sos/eos>"]
SMALL = {
    "output_size": 16,
    "attention_heads": 2,
    "cgmlp_linear_units": 16,
    "cgmlp_conv_kernel": 7,
    "linear_units": 16,
    "num_blocks": 2,
    "input_layer": "conv1d3",
}
#: Of a transducer beside the CTC output; ESPnet puts <blank2> before <blank>.
TRANSDUCER = {
    "decoder": "transducer",
    "decoder_conf": {"hidden_size": 16},
    "joint_net_conf": {"joint_space_size": 16},
    "model_conf": {
        "ctc_weight": 0.3,
        "report_cer": False,
        "report_wer": False,
        "transducer_multi_blank_durations": [2],
    },
}
#: A frontend that has no hop_length; its features are 10 ms apart.
CONVOLUTIONS = {
    "frontend": "wav2vec_cnn",
    "frontend_conf": {
        "norm_mode": "layer_norm",
        "conv_mode": "standard",
        "bias": False,
        "shapes": [[20, 10, 5], [20, 8, 8], [20, 4, 4]],
    },
}

register()


def make_experiment(path: Path, encoder_conf: dict | None = None, **options) -> Path:
    """Save the config and the parameters of a model that says many words of noise."""
    config = {
        "token_type": "char",
        "token_list": CHARACTERS,
        "frontend": "default",
        "frontend_conf": {"n_fft": 512, "hop_length": 160, "n_mels": 20},
        "normalize": "utterance_mvn",
        "encoder": "fastformer",
        "encoder_conf": SMALL | (encoder_conf or {}),
        "model_conf": {"ctc_weight": 1.0},
        "best_model_criterion": [["valid", "cer_ctc", "min"]],
        **options,
    }
    if config["encoder"] not in ("fastformer", "aft"):
        config["encoder_conf"] = encoder_conf
    path.mkdir()
    config_file = path / "config.yaml"
    config_file.write_text(yaml.safe_dump(config))
    args = ASRTask.get_parser().parse_args(["--config", str(config_file)])
    config_file.write_text(yaml.safe_dump(vars(args)))
    torch.manual_seed(0)
    model = ASRTask.build_model(args)
    if model.ctc is not None:
        _make_talkative(model.eval())
    torch.save(model.state_dict(), path / "valid.cer_ctc.ave.pth")
    return path


@torch.no_grad()
def _make_talkative(model: torch.nn.Module) -> None:
    """Make all tokens equally likely over time, as those of a new model are not."""
    speech = torch.from_numpy(noise(4))
    hidden, _ = model.encode(speech[None], torch.tensor([len(speech)]))
    if isinstance(hidden, tuple):
        hidden = hidden[0]
    logits = model.ctc.ctc_lo(hidden)[0]
    model.ctc.ctc_lo.bias -= logits.mean(0)
    scale = 10 / logits.std(0)
    model.ctc.ctc_lo.weight *= scale[:, None]
    model.ctc.ctc_lo.bias *= scale


def noise(seconds: float) -> np.ndarray:
    """Noise of 16 kHz whose loudness changes."""
    random = np.random.default_rng(0)
    samples = round(seconds * 16000)
    loudness = 0.1 + np.sin(np.arange(samples) / 700) ** 2
    return (0.2 * loudness * random.standard_normal(samples)).astype("float32")
