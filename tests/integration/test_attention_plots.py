"""Pictures that ESPnet2's own trainer draws of our encoders."""

import matplotlib.image
import numpy as np
import pytest
import soundfile
from espnet2.tasks.asr import ASRTask
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.inference.models import CHARACTERS, SMALL, noise
from tests.integration.test_asr_task import ENCODERS

UTTERANCES = {"first": 1.0, "second": 0.6}
SHOWN = {
    "fastformer": ["alpha", "beta"],
    "aft-conv": ["key_weights", "position_bias"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    lines = {"wav.scp": [], "text": [], "speech_shape": [], "text_shape": []}
    for name, seconds in UTTERANCES.items():
        speech = noise(seconds)
        soundfile.write(path / f"{name}.wav", speech, 16000)
        lines["wav.scp"].append(f"{name} {path / name}.wav")
        lines["text"].append(f"{name} ABC")
        lines["speech_shape"].append(f"{name} {len(speech)}")
        lines["text_shape"].append(f"{name} 3")
    for file, content in lines.items():
        (path / file).write_text("\n".join(content) + "\n")
    (path / "tokens.txt").write_text("\n".join(CHARACTERS))
    return path


def train(data, exp, name) -> None:
    encoder_conf = {**SMALL, **ENCODERS[name]}
    command = ["--output_dir", str(exp), "--token_type", "char"]
    command += ["--token_list", str(data / "tokens.txt")]
    for part in ("train", "valid"):
        for file, batch in (("wav.scp", "speech,sound"), ("text", "text,text")):
            option = f"--{part}_data_path_and_name_and_type"
            command += [option, f"{data / file},{batch}"]
        for shape in ("speech_shape", "text_shape"):
            command += [f"--{part}_shape_file", str(data / shape)]
    command += ["--encoder", name.split("-")[0]]
    for key, value in encoder_conf.items():
        command += ["--encoder_conf", f"{key}={value}"]
    for option in ("attention_heads=2", "linear_units=8", "num_blocks=1"):
        command += ["--decoder_conf", option]
    command += ["--decoder", "transformer", "--batch_size", "2", "--num_workers", "0"]
    command += ["--max_epoch", "1", "--num_att_plot", "2"]
    command += ["--batch_type", "unsorted"]
    ASRTask.main(cmd=command)


@pytest.mark.parametrize("name", SHOWN)
def test_every_epoch_is_shown(name, data, tmp_path):
    train(data, tmp_path, name)
    layers = [f"encoder.encoders.{i}.attn" for i in range(SMALL["num_blocks"])]
    ours = {f"{layer}.{kind}" for layer in layers for kind in SHOWN[name]}
    events = EventAccumulator(str(tmp_path / "tensorboard" / "train")).Reload()
    images = set(events.Tags()["images"])
    for utterance in UTTERANCES:
        files = {p.name for p in (tmp_path / "att_ws" / utterance).iterdir()}
        shown = {f for f in files if f.startswith("encoder")}
        assert shown == {f"{layer}.1ep.png" for layer in ours}
        # What ESPnet shows by itself.
        assert "decoder.decoders.0.src_attn.1ep.png" in files
        assert {f"{layer}_{utterance}" for layer in ours} <= images
        for file in shown:
            picture = matplotlib.image.imread(tmp_path / "att_ws" / utterance / file)
            assert np.unique(picture[..., 0]).size > 50
