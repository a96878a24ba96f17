"""Words that come while a recording goes on, against those of the whole."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from espnet2.asr.frontend.default import DefaultFrontend
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_fastformer.inference.features import extract_features
from espnet_fastformer.inference.streaming import FeatureStream, StreamingTranscriber
from espnet_fastformer.inference.transcriber import Transcriber

from .models import CONVOLUTIONS, make_experiment, noise

STREAMING = {"input_layer": "conv2d", "block_size": 4}
GLOBAL = {"normalize": None}


def frontend(**options) -> DefaultFrontend:
    defaults = {"n_fft": 400, "win_length": 400, "hop_length": 160, "n_mels": 20}
    return DefaultFrontend(**defaults | options).eval()


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "exp"
    return make_experiment(path, STREAMING, **GLOBAL)


@pytest.fixture
def transcriber(exp):
    return load(exp)


def load(exp, **options) -> Transcriber:
    files = exp / "config.yaml", exp / "valid.cer_ctc.ave.pth"
    return Transcriber(*files, **options)


def stream(streamer, speech, ends):
    """All that comes, with pieces up to each of `ends` and the rest."""
    words = []
    for start, end in pairwise([0, *ends, len(speech)]):
        words += streamer(speech[start:end], is_final=False).words
    return words + streamer(speech[:0], is_final=True).words


@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_fft": 512},
        {"center": False},
        {"hop_length": 300},
        {"n_fft": 512, "hop_length": 128},
        {"n_fft": 512, "hop_length": 256},
    ],
    ids=str,
)
def test_features_of_pieces_are_those_of_the_whole(options, data):
    length = data.draw(st.integers(0, 4000), label="length")
    cuts = data.draw(st.lists(st.integers(0, 900), max_size=8), label="cuts")
    samples = torch.randn(length, generator=torch.Generator().manual_seed(0))
    front = frontend(**options)
    features = FeatureStream(front)
    parts, start = [], 0
    for cut in cuts:
        parts.append(features(samples[start : start + cut], is_final=False))
        start += cut
        assert len(features.samples) <= cut + 2000
    parts.append(features(samples[start:], is_final=True))
    expected = extract_features(front, samples)
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("piece", [160, 1000, 16000, 200000])
def test_words_are_those_of_the_whole_in_chunks(transcriber, piece):
    silence = np.zeros(16000 * 2, dtype="float32")
    speech = np.concatenate([silence, noise(6), silence, noise(6)])
    transcriber.model.encoder.decoding_chunk_size = 4
    whole = transcriber(speech, word_times=True)
    streamer = StreamingTranscriber(transcriber)
    words = stream(streamer, speech, range(piece, len(speech), piece))
    assert len(words) > 5
    assert words == whole.words
    assert " ".join(word.word for word in words) == whole.text


def test_words_come_while_the_recording_goes_on(transcriber):
    speech = noise(12)
    streamer = StreamingTranscriber(transcriber, chunk_size=4)
    early = streamer(speech[: 16000 * 8]).words
    assert early and early[-1].end > 4
    later = streamer(speech[16000 * 8 :], is_final=True).words
    assert later[0].start >= early[-1].end


def test_digital_silence_has_no_words(transcriber):
    streamer = StreamingTranscriber(transcriber)
    silence = np.zeros(16000, dtype="float32")
    words = [word for _ in range(20) for word in streamer(silence).words]
    words += streamer(silence, is_final=True).words
    assert words == []


def test_memory_does_not_grow(transcriber):
    streamer = StreamingTranscriber(transcriber)
    speech = noise(2)
    kept = []
    for _ in range(20):
        streamer(speech)
        kept.append(len(streamer._samples) + len(streamer._features.samples))
        assert len(streamer._spans) < 1000  # A word of noise
    assert max(kept[5:]) <= max(kept[:5])


def test_chunk_size_and_history_are_those_asked_for(transcriber):
    speech = noise(6)
    alone = stream(StreamingTranscriber(transcriber), speech, [16000])
    streamer = StreamingTranscriber(transcriber)
    other = StreamingTranscriber(transcriber, chunk_size=7, num_left_chunks=3)
    words = streamer(speech[:16000]).words
    others = stream(other, speech, [16000])
    words += stream(streamer, speech[16000:], [])
    assert words == alone != others
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        StreamingTranscriber(transcriber, chunk_size=0)


def test_one_recording_each(transcriber):
    streamer = StreamingTranscriber(transcriber)
    streamer(noise(1), is_final=True)
    with pytest.raises(ValueError, match="the recording has ended"):
        streamer(noise(1))


@pytest.mark.parametrize("is_trained_to", [True, False])
def test_model_of_whole_utterances_is_warned_of(tmp_path, is_trained_to, caplog):
    conf = STREAMING | {"dynamic_chunk_training": is_trained_to}
    StreamingTranscriber(load(make_experiment(tmp_path / "exp", conf, **GLOBAL)))
    assert ("trained on whole utterances alone" in caplog.text) != is_trained_to


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": "utterance_mvn"}, "normalize: global_mvn"),
        ({"speech_volume_normalize": 1.0} | GLOBAL, "speech_volume_normalize"),
        (CONVOLUTIONS | GLOBAL, "frontend: default"),
        (
            {"encoder": "aft", "encoder_conf": {"aft_type": "full"}} | GLOBAL,
            "aft_type: full",
        ),
    ],
    ids=str,
)
def test_model_that_cannot_stream_says_why(tmp_path, options, message):
    conf = options.pop("encoder_conf", None)
    exp = make_experiment(tmp_path / "exp", conf, **options)
    with pytest.raises(ValueError, match=message):
        StreamingTranscriber(load(exp))
