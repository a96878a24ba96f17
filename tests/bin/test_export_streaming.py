"""Exported streams, in the runtimes that they are for."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from espnet_fastformer.bin import export
from espnet_fastformer.inference.ctc import collapse, silent_tokens
from espnet_fastformer.inference.features import extract_features
from espnet_fastformer.inference.model import load_model
from tests.inference.models import make_experiment, noise

DOCS = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text()


def example(module: str) -> str:
    """Return the program of docs/streaming.md that imports a module."""
    programs = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    (program,) = (text for text in programs if f"import {module}\n" in text)
    return program


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    """An experiment, with its export to the directory ``streaming`` beside it."""
    pytest.importorskip("onnx")
    directory = tmp_path_factory.mktemp("export")
    frames = np.random.default_rng(0).normal(-8.0, 3.0, (500, 80))
    stats = {"sum": frames.sum(0), "sum_square": (frames**2).sum(0)}
    np.savez(directory / "stats.npz", count=len(frames), **stats)
    exp = make_experiment(
        directory / "exp",
        {
            "block_type": "conformer",
            "num_blocks": 1,
            "input_layer": "conv2d",
            "pos_enc_layer_type": "none",
            "dynamic_chunk_training": True,
        },
        frontend_conf={"n_fft": 400, "win_length": 400, "hop_length": 160},
        normalize="global_mvn",
        normalize_conf={"stats_file": str(directory / "stats.npz")},
    )
    output = directory / "streaming"
    args = ["--exp", str(exp), "--format", "streaming_onnx", "--output", str(output)]
    assert export.main([*args, "--chunk_size", "8"]) == 0
    assert {path.name for path in output.iterdir()} == {"model.onnx", "tokens.txt"}
    return exp


@pytest.fixture
def audio():
    # Quiet at its ends: sherpa-onnx does not mirror the beginning, and leaves out what
    # is no complete chunk.
    loudness = np.interp(np.arange(80000), [0, 8000, 64000, 65000], [0.01, 1, 1, 0.01])
    return (noise(5) * loudness).astype("float32")


@torch.no_grad()
def decode(exp: Path, audio: np.ndarray, is_final: bool) -> list[str]:
    """Decode a stream greedily."""
    model, _ = load_model(exp / "config.yaml", exp / "valid.cer_ctc.ave.pth")
    model.eval()
    model.encoder.block_size = 8
    feats = extract_features(model.frontend, torch.from_numpy(audio))
    feats, _ = model.normalize(feats, torch.tensor([feats.size(1)]))
    hidden, _, _ = model.encoder.forward_infer(feats, is_final=is_final)
    spans = collapse(model.ctc.argmax(hidden)[0], silent_tokens(model))
    return [model.token_list[span.token] for span in spans]


def text_only(tokens: list[str]) -> list[str]:
    """Drop the token that a trained model never gives, and no transcript has."""
    return [token for token in tokens if token != "<sos/eos>"]


def test_onnx_runtime(exp, audio, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(exp.parent)
    model, _ = load_model(exp / "config.yaml", exp / "valid.cer_ctc.ave.pth")
    with torch.no_grad():
        feats = extract_features(model.eval().frontend, torch.from_numpy(audio))[0]
    np.save("feats.npy", feats.numpy())
    capsys.readouterr()
    exec(example("onnxruntime"), {})
    tokens = capsys.readouterr().out.split()
    assert len(tokens) > 50
    assert text_only(tokens) == decode(exp, audio, is_final=True)


def test_sherpa_onnx(exp, audio, monkeypatch, capfd):
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    directory = exp.parent / "streaming"
    recognizer = sherpa_onnx.OnlineRecognizer.from_zipformer2_ctc(
        str(directory / "tokens.txt"), str(directory / "model.onnx")
    )

    # Two streams, of which one begins later, are decoded in one call.
    streams = [recognizer.create_stream() for _ in range(2)]
    half_a_hop, late = np.zeros(80, "float32"), np.zeros(0, "float32")
    pieces = [half_a_hop, *np.split(audio, range(1000, len(audio), 1000))]
    for samples in zip(pieces + [late] * 9, [late] * 9 + pieces, strict=True):
        for stream, piece in zip(streams, samples, strict=True):
            stream.accept_waveform(16000, piece)
        while ready := [s for s in streams if recognizer.is_ready(s)]:
            recognizer.decode_streams(ready)
    expected = decode(exp, audio, is_final=False)
    for stream in streams:
        symbols = [token.replace(" ", "<space>") for token in recognizer.tokens(stream)]
        assert len(symbols) > 50
        assert text_only(symbols) == expected

    monkeypatch.chdir(exp.parent)
    soundfile.write("talk.wav", audio, 16000)
    capfd.readouterr()
    exec(example("sherpa_onnx"), {})
    text = recognizer.get_result(streams[0])
    assert capfd.readouterr().out.startswith(text[:-5])
