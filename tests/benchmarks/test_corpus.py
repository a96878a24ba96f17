import numpy as np

from benchmarks.corpus import draw, join, read_corpus
from espnet_fastformer.inference.audio import read_audio
from tests.benchmarks.conftest import FS


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
