import functools
from itertools import groupby

import numpy as np
import pytest
import sentencepiece
import torch
from espnet2.bin.asr_inference import Speech2Text

from espnet_fastformer.inference import features
from espnet_fastformer.inference import transcriber as module
from espnet_fastformer.inference.experiment import find_model_file
from espnet_fastformer.inference.transcriber import Transcriber
from espnet_fastformer.layers import pieces
from tests.inference.models import (
    CONVOLUTIONS,
    TRANSDUCER,
    make_experiment,
    noise,
)

FS = 16000
DECODER = {
    "decoder": "transformer",
    "decoder_conf": {"attention_heads": 2, "linear_units": 16, "num_blocks": 1},
    "model_conf": {"ctc_weight": 0.5},
}


@functools.cache
def build(exp, **options) -> Transcriber:
    return Transcriber(exp / "config.yaml", find_model_file(exp), **options)


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    return make_experiment(tmp_path_factory.mktemp("model") / "exp")


@pytest.fixture(scope="module")
def exp_without_far_influence(tmp_path_factory):
    """With no mixer and no positions, a frame sees its neighbours alone."""
    path = tmp_path_factory.mktemp("model") / "exp"
    local = {
        "block_type": "branchformer",
        "use_attn": False,
        "pos_enc_layer_type": "none",
    }
    return make_experiment(path, local, normalize=None)


@pytest.fixture(scope="module")
def exp_with_decoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "exp"
    conditioning = {"interctc_layer_idx": [1], "interctc_use_conditioning": True}
    return make_experiment(path, conditioning, **DECODER)


@pytest.mark.parametrize(
    "encoder, subsampling",
    [("fastformer", "conv1d3"), ("fastformer", "conv2d"), ("aft", "linear")],
)
def test_pieces_say_what_the_whole_says(encoder, subsampling, tmp_path, monkeypatch):
    conf = {"input_layer": subsampling}
    exp = make_experiment(tmp_path / "exp", conf, encoder=encoder)
    transcriber = build(exp)
    speech = noise(6)
    model = transcriber.model
    with torch.no_grad():
        hidden, _ = model.encode(
            torch.from_numpy(speech)[None], torch.tensor([len(speech)])
        )
        path = model.ctc.argmax(hidden)[0]
    # What ESPnet's own search makes of the same output.
    expected = [int(t) for t in path.unique_consecutive() if t not in (0, 13)]
    text = "".join(model.token_list[t] for t in expected).replace("<space>", " ")
    assert len(text.split()) > 5

    monkeypatch.setattr(pieces, "FRAMES_AT_ONCE", 70)
    monkeypatch.setattr(module, "_PAUSE", 6)
    assert transcriber(speech).text == " ".join(text.split())


def test_a_pause_ends_a_word(exp, monkeypatch):
    speech = noise(3)
    words = build(exp)(speech).text.split()
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    more = build(exp)(speech).text.split()
    assert len(more) > len(words) and "".join(more) == "".join(words)


def test_words_have_the_times_of_their_frames(exp):
    transcriber = build(exp)
    speech = noise(6)
    transcript = transcriber(speech, word_times=True)
    assert " ".join(w.word for w in transcript.words) == transcript.text
    starts = [w.start for w in transcript.words]
    ends = [w.end for w in transcript.words]
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert 0 <= starts[0] < 1 and 5 < ends[-1] <= 6
    # conv1d3 sees 7 frames of 10 ms, of which the middle 3 are its own.
    frames = (np.array(starts + ends) - 0.02) / 0.03
    np.testing.assert_allclose(frames, frames.round(), atol=1e-6)


def test_word_pieces(tmp_path):
    letters = "ABCDEFGHIJ"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            [f"{a}{b}{c} {c}{a}" for a in letters for b in letters for c in letters]
        ),
        model_prefix=str(tmp_path / "bpe"),
        vocab_size=40,
        model_type="bpe",
        minloglevel=2,
    )
    bpemodel = str(tmp_path / "bpe.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=bpemodel)
    learned = [pieces.id_to_piece(i) for i in range(3, 40)]
    transcriber = build(
        make_experiment(
            tmp_path / "exp",
            token_type="bpe",
            bpemodel=bpemodel,
            token_list=["<blank>", "<unk>", *learned, "<sos/eos>"],
        )
    )
    transcript = transcriber(noise(4), word_times=True)
    assert "▁" not in transcript.text and len(transcript.words) > 3
    assert " ".join(w.word for w in transcript.words) == transcript.text


def test_characters_are_words_where_there_is_no_space(tmp_path):
    characters = ["<blank>", "<unk>", *"日本語中国人大学生", "<sos/eos>"]
    transcriber = build(make_experiment(tmp_path / "exp", token_list=characters))
    transcript = transcriber(noise(4), word_times=True)
    words = [word.word for word in transcript.words]
    assert len(words) > 5 and set(words) <= set(characters)
    assert "".join(words) == transcript.text


def test_blanks_of_a_transducer_are_no_text(tmp_path):
    transcriber = build(make_experiment(tmp_path / "exp", **TRANSDUCER))
    model = transcriber.model
    assert model.token_list[:2] == ["<blank2>", "<blank>"] and model.blank_id == 1
    speech = noise(4)
    with torch.no_grad():
        hidden, _ = model.encode(
            torch.from_numpy(speech)[None], torch.tensor([len(speech)])
        )
        path = model.ctc.argmax(hidden)[0].tolist()
    assert {0, 1} < set(path)
    said = [model.token_list[token] for token, _ in groupby(path)]
    silent = ("<blank2>", "<blank>", "<sos/eos>")
    text = "".join(token for token in said if token not in silent)
    assert transcriber(speech).text == " ".join(text.replace("<space>", " ").split())


@pytest.mark.parametrize("window", [None, 1.0])
def test_a_frontend_that_does_not_tell_its_hop(window, tmp_path):
    exp = make_experiment(tmp_path / "exp", **CONVOLUTIONS)
    transcriber = build(exp, pooling_window=window)
    words = transcriber(noise(4), word_times=True).words
    assert len(words) > 3 and 0 <= words[0].start < 1 and 3 < words[-1].end <= 4
    assert transcriber(noise(0)).text == ""


def test_sampling_rate_is_the_frontends(tmp_path):
    frontend = {"fs": "8k", "n_fft": 256, "hop_length": 80, "n_mels": 20}
    transcriber = build(make_experiment(tmp_path / "exp", frontend_conf=frontend))
    assert transcriber.fs == 8000
    words = transcriber(noise(2), word_times=True).words
    assert 3 < words[-1].end <= 4


def test_times_of_windows_that_begin_at_their_first_sample(exp, tmp_path):
    conf = {"n_fft": 512, "hop_length": 160, "n_mels": 20, "center": False}
    transcriber = build(make_experiment(tmp_path / "exp", frontend_conf=conf))
    words = transcriber(noise(4), word_times=True).words
    # The first of 7 features has its middle at 256 samples.
    frames = (np.array([w.start for w in words]) - 0.02 - 0.016) / 0.03
    np.testing.assert_allclose(frames, frames.round(), atol=0.02)


def test_digital_silence_has_no_words(exp, exp_with_decoder, caplog):
    silence = np.zeros(3 * FS, dtype="float32")
    dither = np.random.default_rng(0).choice([-1, 0, 1], 3 * FS) / 2**15
    for transcriber in (build(exp), build(exp_with_decoder, beam_size=2)):
        for samples in (silence, silence + 0.1, dither):
            caplog.clear()
            assert transcriber(samples).text == ""
            assert "there is no sound" in caplog.text
        assert transcriber(noise(1) / 2**8).text
    assert build(exp)(silence, word_times=True).words == []


def test_digital_silence_within_a_recording_has_no_words(exp):
    silence = np.zeros(4 * FS, dtype="float32")
    speech = np.concatenate([silence, noise(2), silence, noise(2), silence])
    words = build(exp)(speech, word_times=True).words
    sounds = [(3.5, 6.5), (9.5, 12.5)]
    said = [[w for w in words if a <= w.start and w.end <= b] for a, b in sounds]
    assert all(said) and sum(said, []) == words


def test_times_follow_the_sound(exp_without_far_influence):
    transcriber = build(exp_without_far_influence)
    delay = 30 * 3 * 160
    late = np.concatenate([np.zeros(delay, dtype="float32"), noise(4)])
    at_once = transcriber(noise(4), word_times=True).words[-4:]
    later = transcriber(late, word_times=True).words[-4:]
    assert [w.word for w in later] == [w.word for w in at_once]
    for one, other in zip(at_once, later, strict=True):
        assert other.start - one.start == pytest.approx(delay / FS)
        assert other.end - one.end == pytest.approx(delay / FS)


def test_a_window_as_long_as_the_recording_changes_nothing(exp):
    speech = noise(4)
    whole = build(exp)(speech)
    assert build(exp, pooling_window=4.0)(speech) == whole
    assert build(exp, pooling_window=1.0)(speech) != whole


def test_windows_give_the_whole_where_nothing_is_pooled(exp_without_far_influence):
    for seconds in (1.9, 2.0, 5.3):
        speech = noise(seconds)
        exp = exp_without_far_influence
        whole = build(exp)(speech, word_times=True)
        windows = build(exp, pooling_window=1.0)(speech, word_times=True)
        assert windows == whole and len(whole.words) > 3


def test_beam_search_is_espnets(exp_with_decoder):
    speech = noise(1)
    theirs = Speech2Text(
        exp_with_decoder / "config.yaml",
        exp_with_decoder / "valid.cer_ctc.ave.pth",
        beam_size=3,
        ctc_weight=0.3,
    )
    ((text, *_), *_), _ = theirs(speech)
    transcriber = build(exp_with_decoder, beam_size=3)
    done = []
    assert transcriber(speech, progress=done.append).text == text.strip()
    assert text.strip() and sum(done) == pytest.approx(1)
    with pytest.raises(ValueError, match="beam_size 1"):
        transcriber(speech, word_times=True)


def test_beam_search_of_a_model_without_ctc(tmp_path):
    attention = DECODER | {"model_conf": {"ctc_weight": 0.0}}
    exp = make_experiment(tmp_path / "exp", **attention)
    with pytest.raises(ValueError, match="no CTC output.*: use a larger beam_size"):
        build(exp)
    theirs = Speech2Text(
        exp / "config.yaml",
        exp / "valid.cer_ctc.ave.pth",
        beam_size=3,
        ctc_weight=0.0,
    )
    text = build(exp, beam_size=3)(noise(1)).text
    assert text == theirs(noise(1))[0][0].strip() != ""


@pytest.mark.parametrize("window", [None, 1.0])
def test_progress_adds_up(window, exp_with_decoder):
    done = []

    def report(share):
        done.append(share)
        return True  # As a progress bar does that was drawn anew.

    transcriber = build(exp_with_decoder, pooling_window=window)
    assert transcriber(noise(3), progress=report) == transcriber(noise(3))
    assert len(done) >= 2 and sum(done) == pytest.approx(1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype, exp):
    samples = torch.from_numpy(noise(3))

    @torch.no_grad()
    def best_path(dtype):
        transcriber = build(exp, dtype=dtype)
        recording = features.prepare_recording(transcriber.model, samples, FS, None)
        return transcriber.best_path(recording, progress=lambda share: None)

    same = best_path(dtype) == best_path("float32")
    assert len(same) == 99 and same.float().mean() > 0.9


@pytest.mark.parametrize("beam_size", [1, 3])
def test_double_precision(beam_size, exp_with_decoder):
    speech = noise(1)
    single = build(exp_with_decoder, beam_size=beam_size)
    double = build(exp_with_decoder, beam_size=beam_size, dtype="float64")
    assert {p.dtype for p in double.model.parameters()} == {torch.float64}
    assert single(speech.astype("float64")) == single(speech)
    assert double(speech).text == single(speech).text


@pytest.mark.parametrize(
    "speech", [np.zeros(FS, "int16"), np.zeros((FS, 2), "float32"), np.zeros(())]
)
def test_what_are_no_samples_of_one_channel_is_named(speech, exp):
    with pytest.raises(ValueError, match="speech must be samples .* it is (int|float)"):
        build(exp)(speech)


@pytest.mark.parametrize("samples", [0, 1, 300, 900])
@pytest.mark.parametrize("beam_size", [1, 2])
def test_too_short_a_recording_is_empty(samples, beam_size, exp_with_decoder, caplog):
    transcriber = build(exp_with_decoder, beam_size=beam_size)
    transcript = transcriber(noise(1)[:samples], word_times=beam_size == 1)
    assert transcript.text == "" and not transcript.words
    assert "too short" in caplog.text


def test_volume_is_normalised_as_in_training(exp, tmp_path):
    options = {"speech_volume_normalize": 0.5, "normalize": None}
    loud = build(make_experiment(tmp_path / "exp", **options))
    assert loud(0.1 * noise(2)) == loud(noise(2))
    assert loud(np.zeros(FS, dtype="float32")) is not None


def test_unfit_models_and_options_are_named(exp, tmp_path):
    conformer = {"attention_heads": 2, "output_size": 16, "linear_units": 16}
    with pytest.raises(ValueError, match="word times need token_type .* has phn"):
        phonemes = make_experiment(tmp_path / "phn", token_type="phn")
        build(phonemes).check_word_times()
    with pytest.raises(OSError, match="missing.model"):
        make_experiment(tmp_path / "bpe", token_type="bpe", bpemodel="missing.model")
        build(tmp_path / "bpe")
    for options, words in (
        ({"encoder": "conformer", "encoder_conf": conformer}, "ConformerEncoder"),
        (DECODER | {"model_conf": {"ctc_weight": 0.0}}, "no CTC output"),
    ):
        name = "-".join(words.split())
        model = make_experiment(tmp_path / name, **options)
        with pytest.raises(ValueError, match=words):
            build(model)
    with pytest.raises(ValueError, match="no decoder"):
        build(exp, beam_size=2)
    with pytest.raises(ValueError, match="dtype must be one of"):
        build(exp, dtype="int8")
    for window in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="pooling_window must be a positive"):
            build(exp, pooling_window=window)
