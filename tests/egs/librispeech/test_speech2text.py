"""Decoding along the best path, and with an encoder that sees windows."""

import pytest
import torch
from espnet2.bin.asr_inference import Speech2Text
from src.speech2text import LongSpeech2Text

from espnet_fastformer.inference.ctc import collapse
from espnet_fastformer.inference.experiment import find_model_file
from espnet_fastformer.inference.features import prepare_recording
from espnet_fastformer.inference.transcriber import Transcriber
from tests.inference.models import CONVOLUTIONS, TRANSDUCER, make_experiment, noise

SECONDS = 6.0
SEARCH = {"beam_size": 1, "ctc_weight": 1.0, "lm_weight": 0.0}
ATTENTION = {
    "decoder": "transformer",
    "decoder_conf": {"attention_heads": 2, "linear_units": 16, "num_blocks": 1},
    "model_conf": {"ctc_weight": 0.0},
}
ESPNETS = {
    "output_size": 16,
    "attention_heads": 2,
    "num_blocks": 2,
    "cgmlp_linear_units": 16,
    "cgmlp_conv_kernel": 7,
    "attention_layer_type": "rel_selfattn",
    "pos_enc_layer_type": "rel_pos",
    "rel_pos_type": "latest",
    "input_layer": "conv2d",
    "interctc_layer_idx": [1],
    "interctc_use_conditioning": True,
}


@pytest.fixture(scope="module", params=["fastformer", "e_branchformer"])
def exp(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "exp"
    conf = {"input_layer": "conv2d"} if request.param == "fastformer" else ESPNETS
    return make_experiment(path, conf, encoder=request.param)


def build(decoding, exp, **options):
    files = {"asr_train_config": exp / "config.yaml"}
    files["asr_model_file"] = find_model_file(exp)
    return decoding(**files, **options)


@torch.no_grad()
def encode(speech2text, speech) -> torch.Tensor:
    speech = torch.from_numpy(speech)[None]
    out, _ = speech2text.asr_model.encode(speech, torch.tensor([speech.size(1)]))
    return out[0] if isinstance(out, tuple) else out


def test_a_window_as_long_as_the_recording_changes_nothing(exp):
    speech = noise(SECONDS)
    whole = build(Speech2Text, exp, **SEARCH)
    long, short = (
        build(LongSpeech2Text, exp, pooling_window=seconds, **SEARCH)
        for seconds in (SECONDS, SECONDS / 3)
    )
    torch.testing.assert_close(encode(long, speech), encode(whole, speech))
    (expected,) = whole([speech])
    assert expected[0][0]
    assert long([speech])[0][0][:3] == expected[0][:3]
    assert short([speech])[0][0][:3] != expected[0][:3]


def test_best_path_is_the_best_token_of_each_frame(exp):
    decoding = build(LongSpeech2Text, exp, best_path=True, **SEARCH)
    speech = [noise(SECONDS), noise(SECONDS / 2)]
    results = decoding(speech)
    assert len(results) == 2
    model = decoding.asr_model
    for one, (hypothesis,) in zip(speech, results, strict=True):
        text, tokens, token_int, _ = hypothesis
        path = model.ctc.argmax(encode(decoding, one))[0].tolist()
        merged = [
            token
            for token, previous in zip(path, [None, *path], strict=False)
            if token != previous
        ]
        silent = (model.blank_id, model.sos, model.eos)
        assert token_int == [token for token in merged if token not in silent]
        assert len(token_int) > 3
        assert [model.token_list[token] for token in token_int] == tokens
        assert text == decoding.tokenizer.tokens2text(tokens)
        alone = decoding(one)
        (alone,) = alone[0] if isinstance(alone, tuple) else alone
        assert alone[:3] == hypothesis[:3]


@pytest.mark.parametrize("exp", ["fastformer"], indirect=True)
def test_best_path_through_windows(exp):
    speech = noise(SECONDS)
    both = build(LongSpeech2Text, exp, best_path=True, pooling_window=1.0, **SEARCH)
    windowed = build(LongSpeech2Text, exp, pooling_window=1.0, **SEARCH)
    (result,) = both([speech])
    path = both.asr_model.ctc.argmax(encode(windowed, speech))[0]
    silent = {both.asr_model.blank_id, both.asr_model.sos, both.asr_model.eos}
    assert result[0][2] == [span.token for span in collapse(path, silent)]


def test_best_path_of_a_transducer_has_no_blanks(tmp_path):
    exp = make_experiment(tmp_path / "exp", **TRANSDUCER)
    search = {name: SEARCH[name] for name in ("beam_size", "lm_weight")}
    decoding = build(LongSpeech2Text, exp, best_path=True, **search)
    ((_, tokens, _, _),) = decoding(noise(SECONDS))
    path = decoding.asr_model.ctc.argmax(encode(decoding, noise(SECONDS)))[0]
    # <blank2>, which ESPnet's CTC takes for its blank, <blank> and <sos/eos>.
    assert {0, 1} < set(path.tolist())
    spans = collapse(path, {0, 1, decoding.asr_model.eos})
    expected = [decoding.asr_model.token_list[span.token] for span in spans]
    assert tokens == expected


@pytest.mark.parametrize("options", [{}, {"best_path": True}, ATTENTION, TRANSDUCER])
def test_what_is_too_short_has_no_hypothesis(options, tmp_path, caplog):
    decoding_options = {k: v for k, v in options.items() if k == "best_path"}
    model = {k: v for k, v in options.items() if k not in decoding_options}
    exp = make_experiment(tmp_path / "exp", {"input_layer": "conv2d"}, **model)
    search = SEARCH | {"ctc_weight": 0.0 if options is ATTENTION else 1.0}
    decoding = build(LongSpeech2Text, exp, **search, **decoding_options)
    least = 6 * 160
    short, long, least = noise(2)[: least - 1], noise(2), noise(2)[:least]
    results = decoding([short, long, short, least])
    assert [bool(result) for result in results] == [False, True, False, True]
    assert results[1][0][:3] == decoding([long])[0][0][:3]
    assert decoding([short]) == [[]]
    assert decoding(short) == []
    assert "in 959 samples: the encoder needs 960 or more" in caplog.text


def test_best_path_without_ctc_is_refused(tmp_path):
    exp = make_experiment(tmp_path / "exp", **ATTENTION)
    with pytest.raises(ValueError, match="best_path needs a CTC output.*ctc_weight"):
        build(LongSpeech2Text, exp, best_path=True, **SEARCH)


@pytest.mark.parametrize("exp", ["fastformer"], indirect=True)
def test_windows_are_those_of_transcribe(exp):
    speech = noise(SECONDS)
    windowed = build(LongSpeech2Text, exp, pooling_window=1.0, **SEARCH)
    transcriber = build(Transcriber, exp, pooling_window=1.0)
    tokens = windowed.asr_model.ctc.argmax(encode(windowed, speech))[0]
    recording = prepare_recording(
        transcriber.model, torch.from_numpy(speech), transcriber.fs, volume=None
    )
    expected = transcriber.best_path(recording, progress=lambda share: None)
    assert len(expected.unique()) > 3
    torch.testing.assert_close(tokens, expected)


@pytest.mark.parametrize("exp", ["fastformer"], indirect=True)
def test_several_utterances_at_once_are_refused(exp):
    windowed = build(LongSpeech2Text, exp, pooling_window=1.0, **SEARCH)
    with pytest.raises(ValueError, match="pooling_window needs batch_size: 1"):
        windowed([noise(2), noise(2)])


def test_frontend_that_tells_no_seconds_is_refused(tmp_path):
    exp = make_experiment(tmp_path / "exp", **CONVOLUTIONS)
    with pytest.raises(ValueError, match="needs frontend: default.*CNNFrontend"):
        build(LongSpeech2Text, exp, pooling_window=1.0, **SEARCH)


def test_chunks_are_those_of_a_stream(exp):
    if "e_branchformer" in (exp / "config.yaml").read_text().split():
        with pytest.raises(ValueError, match="encoder: fastformer or aft"):
            build(LongSpeech2Text, exp, chunk_size=4, **SEARCH)
        return
    decoding = build(
        LongSpeech2Text, exp, best_path=True, chunk_size=4, num_left_chunks=2, **SEARCH
    )
    speech = noise(SECONDS)
    model = decoding.asr_model
    feats, lengths = model._extract_feats(
        torch.from_numpy(speech)[None], torch.tensor([len(speech)])
    )
    feats, _ = model.normalize(feats, lengths)
    model.encoder.block_size = 4
    with torch.no_grad():
        hidden, _, _ = model.encoder.forward_infer(feats)
    path = model.ctc.argmax(hidden)[0]
    silent = {model.blank_id, model.sos, model.eos}
    ((_, _, token_int, _),) = decoding(speech)
    assert token_int == [span.token for span in collapse(path, silent)]
