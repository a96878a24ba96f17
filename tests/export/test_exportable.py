import pytest

from espnet_fastformer.export.exportable import for_streams, load_exportable
from tests.inference.models import CONVOLUTIONS, make_experiment

#: The two lines that make a model for streams, and what sherpa-onnx computes.
STREAMING = {"pos_enc_layer_type": "none", "input_layer": "conv2d", "block_size": 8}
WHISPER = {"n_fft": 400, "win_length": 400, "hop_length": 160}


def load(tmp_path, encoder_conf=(), **options):
    options = {"normalize": None, "frontend_conf": WHISPER} | options
    conf = STREAMING | dict(encoder_conf)
    exp = make_experiment(tmp_path / "exp", conf, **options)
    return load_exportable(exp / "config.yaml", exp / "valid.cer_ctc.ave.pth")


def test_chunks_are_as_long_as_asked_for(tmp_path):
    model = load(tmp_path)
    module = for_streams(model).module
    assert (module.size, module.shift) == (4 * 8 + 3, 4 * 8)
    module = for_streams(model, 3).module
    assert (module.size, module.shift) == (4 * 3 + 3, 4 * 3)
    assert module.metadata["T"] == "15"
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        for_streams(model, 0)


@pytest.mark.parametrize("is_trained_so", [True, False])
def test_a_training_without_chunks_is_told(is_trained_so, tmp_path, caplog):
    for_streams(load(tmp_path, {"dynamic_chunk_training": is_trained_so}))
    assert ("dynamic_chunk_training" in caplog.text) != is_trained_so


@pytest.mark.parametrize(
    "encoder_conf, options, words",
    [
        ({}, {"normalize": "utterance_mvn"}, "utterance_mvn .* normalize: global_mvn"),
        (
            {},
            {"speech_volume_normalize": 0.5},
            "speech_volume_normalize .* train without it",
        ),
        (
            {"pos_enc_layer_type": "conv", "block_size": None},
            {},
            "pos_enc_layer_type: conv .* take none",
        ),
        (
            {"aft_type": "full", "block_size": None},
            {"encoder": "aft"},
            "aft_type: full",
        ),
    ],
)
def test_what_cannot_stream_is_refused(encoder_conf, options, words, tmp_path):
    model = load(tmp_path, encoder_conf, **options)
    with pytest.raises(ValueError, match=words):
        for_streams(model)


@pytest.mark.parametrize(
    "frontend",
    [
        {"frontend_conf": WHISPER},
        {"frontend_conf": WHISPER | {"win_length": None, "fs": "16k", "fmax": 8000}},
    ],
)
def test_sherpa_onnx_runs_what_has_its_features(frontend, tmp_path):
    model = for_streams(load(tmp_path, **frontend))
    assert model.why_not_sherpa is None
    assert model.module.metadata["feature"] == "whisper"


@pytest.mark.parametrize(
    "encoder_conf, frontend, words",
    [
        ({}, {"frontend_conf": WHISPER | {"n_fft": 512}}, "n_fft: 400"),
        ({}, {"frontend_conf": WHISPER | {"fs": 8000}}, "fs: 16000"),
        ({}, {"frontend_conf": WHISPER | {"n_mels": 40}}, "n_mels: 80"),
        ({}, {"frontend_conf": WHISPER | {"window": "hamming"}}, "other features"),
        ({}, {"frontend_conf": WHISPER | {"hop_length": 128}}, "hop_length: 160"),
        ({}, CONVOLUTIONS, "frontend: default"),
        ({"input_layer": "conv2d6"}, {}, "input_layer: conv2d, but the encoder 6"),
    ],
)
def test_other_models_are_for_onnx_runtime_alone(
    encoder_conf, frontend, words, tmp_path
):
    model = for_streams(load(tmp_path, encoder_conf, **frontend))
    assert words in model.why_not_sherpa
    # Without these, sherpa-onnx does not load the file.
    assert "encoder_dims" not in model.module.metadata
    assert "feature" not in model.module.metadata
