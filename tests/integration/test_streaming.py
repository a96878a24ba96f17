"""ESPnet's streaming recogniser, as it is, with our encoders."""

from pathlib import Path

import egs3
import numpy as np
import pytest
import soundfile
import torch
from espnet2.bin.asr_inference_streaming import Speech2TextStreaming, main

from tests.inference.models import make_experiment, noise

STREAMING = {
    "input_layer": "conv2d",
    "block_size": 8,
    "hop_size": 8,
    "look_ahead": 0,
}
FRONTEND = {"n_fft": 400, "win_length": 400, "hop_length": 160, "n_mels": 20}
MODEL = {
    "normalize": None,
    "frontend_conf": FRONTEND,
    "decoder": "transformer",
    "decoder_conf": {"attention_heads": 2, "linear_units": 16, "num_blocks": 1},
    "model_conf": {"ctc_weight": 0.5},
}
SEARCH = {"beam_size": 2, "disable_repetition_detection": True, "device": "cpu"}


@pytest.fixture(scope="module", params=["fastformer", "aft"])
def experiment(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("streaming") / request.param
    conf = STREAMING | ({"aft_type": "conv"} if request.param == "aft" else {})
    return make_experiment(path, conf, encoder=request.param, **MODEL)


@pytest.fixture(scope="module")
def recording() -> np.ndarray:
    """One of the real recordings that ESPnet comes with."""
    audio = sorted(Path(egs3.__path__[0]).glob("mini_an4/**/*.sph"))
    if not audio:
        return noise(3)
    samples, _ = soundfile.read(audio[0], dtype="float32")
    return samples


def recogniser(experiment: Path) -> Speech2TextStreaming:
    files = experiment / "config.yaml", experiment / "valid.cer_ctc.ave.pth"
    return Speech2TextStreaming(*map(str, files), **SEARCH)


def decode_in_pieces(recogniser, samples, length):
    """Words, and what the encoder gave."""
    encoder = recogniser.asr_model.encoder
    outs = []

    def listen(_, __, result):
        outs.append(result[0])

    handle = encoder.register_forward_hook(listen)
    starts = range(0, len(samples), length)
    for start in starts:
        piece = samples[start : start + length]
        results = recogniser(piece, is_final=start == starts[-1])
    handle.remove()
    return results[0][0], torch.cat(outs, dim=1)


def test_recogniser_sees_the_whole_in_chunks(experiment, recording):
    streaming = recogniser(experiment)
    model = streaming.asr_model
    model.encoder.decoding_chunk_size = 8
    with torch.no_grad():
        speech = torch.from_numpy(recording)[None]
        expected, _ = model.encode(speech, torch.tensor([speech.size(1)]))
    texts = set()
    for length in (512, 1000, 3200, 16000):
        text, out = decode_in_pieces(streaming, recording, length)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
        texts.add(text)
    assert len(texts) == 1


def test_command_line(experiment, recording, tmp_path):
    audio = tmp_path / "a.wav"
    soundfile.write(audio, recording, 16000)
    (tmp_path / "wav.scp").write_text(f"a {audio}\n")
    command = ["--asr_train_config", str(experiment / "config.yaml")]
    command += ["--asr_model_file", str(experiment / "valid.cer_ctc.ave.pth")]
    command += ["--data_path_and_name_and_type", f"{tmp_path}/wav.scp,speech,sound"]
    command += ["--output_dir", str(tmp_path / "out"), "--lm_weight", "0.0"]
    command += ["--sim_chunk_length", "4000", "--beam_size", "2", "--num_workers", "0"]
    command += ["--disable_repetition_detection", "true"]
    main(command)
    text = (tmp_path / "out" / "1best_recog" / "text").read_text()
    assert text.startswith("a ") and len(text) > 4


def test_recordings_without_a_frame_have_no_words(experiment, recording):
    streaming = recogniser(experiment)
    assert streaming(recording[:800], is_final=True) == []
    # And spoil nothing after them.
    whole = recogniser(experiment)(recording, is_final=True)
    assert streaming(recording, is_final=True)[0][0] == whole[0][0]
