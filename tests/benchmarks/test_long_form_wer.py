import numpy as np
import pytest

from benchmarks.corpus import read_corpus
from benchmarks.long_form_wer import decode_each, decode_joined, draw, join, main
from espnet_fastformer.inference.audio import read_audio
from tests.benchmarks.conftest import FS
from tests.inference.models import make_experiment


def test_each_utterance_comes_before_any_comes_again(corpus):
    found = read_corpus(corpus, ["test"])
    utterances = list(draw(found, 19, (0.1, 0.2), seed=0))
    texts = [utterance.text for utterance in utterances]
    assert sorted(texts[:3]) == sorted(texts[3:6]) == ["ONE", "THREE", "TWO WORDS"]
    assert {u.text: u.audio.name for u in utterances} == {
        "ONE": "1-2-0000.flac",
        "TWO WORDS": "1-2-0001.flac",
        "THREE": "1-2-0002.flac",
    }
    joined = join(utterances, FS)
    assert 19 <= len(joined) / FS < 23
    assert utterances == list(draw(found, 19, (0.1, 0.2), seed=0))
    first, second, *_ = utterances
    speech = read_audio(first.audio, FS)
    silence = round(first.silence * FS)
    assert 0.1 <= first.silence <= 0.2
    np.testing.assert_array_equal(joined[: len(speech)], speech)
    assert not joined[len(speech) :][:silence].any()
    after = joined[len(speech) + silence :]
    np.testing.assert_array_equal(after[:FS], read_audio(second.audio, FS)[:FS])


def test_joined_and_one_by_one(corpus, tmp_path):
    exp = make_experiment(tmp_path / "exp")
    options = {
        "asr_train_config": exp / "config.yaml",
        "asr_model_file": exp / "valid.cer_ctc.ave.pth",
    }
    texts = read_corpus(corpus, ["test"])
    utterances = list(draw(texts, 6, (0.1, 0.2), seed=0))
    each = decode_each(utterances, options)
    joined = decode_joined(utterances, options)
    windows = decode_joined(utterances, {**options, "pooling_window": 1.0})
    assert len({each.text, joined.text, windows.text}) == 3
    assert all(len(d.text.split()) > 3 for d in (each, joined, windows))
    alone = decode_joined(utterances[:1], options)
    assert alone.memory > 1e8


def test_missing_subset_is_named(corpus, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--exp", str(tmp_path), "--corpus", str(corpus), "--subsets", "dev"])
    assert f"{corpus / 'dev'} has no utterance" in capsys.readouterr().err
