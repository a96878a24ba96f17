"""Errors of utterances, and intervals against closed forms."""

import numpy as np
import pytest

from benchmarks.scores import Errors, average, compare, count_errors


def errors(cer, characters=None, wer=None) -> Errors:
    cer = np.array(cer, dtype=float)
    ones = np.ones_like(cer)
    return Errors(
        [f"{index:05}" for index in range(len(cer))],
        cer,
        ones if characters is None else np.array(characters, dtype=float),
        ones if wer is None else np.array(wer, dtype=float),
        ones,
    )


def test_counts_by_utterance():
    counted = count_errors(
        {"b": "THE CAT SAT", "a": "ON MATS", "c": "YES"},
        {"a": "ON A MAT", "c": "", "b": "THE CAT SAT"},
    )
    assert counted.utt_ids == ["a", "b", "c"]
    # Spaces are characters: "A " is too much, and an S is missing.
    np.testing.assert_array_equal(counted.cer, [3, 0, 3])
    np.testing.assert_array_equal(counted.characters, [7, 11, 3])
    np.testing.assert_array_equal(counted.wer, [2, 0, 1])
    np.testing.assert_array_equal(counted.words, [2, 3, 1])
    assert counted.character_error_rate == pytest.approx(100 * 6 / 21)
    assert counted.word_error_rate == pytest.approx(100 * 3 / 6)


def test_utterance_that_was_not_decoded_is_no_small_matter():
    with pytest.raises(ValueError, match="not all utterances"):
        count_errors({"a": "YES", "b": "NO"}, {"a": "YES"})


def test_average_of_seeds():
    mean = average([errors([0, 4], wer=[1, 0]), errors([2, 0], wer=[0, 0])])
    np.testing.assert_array_equal(mean.cer, [1, 2])
    np.testing.assert_array_equal(mean.wer, [0.5, 0])
    with pytest.raises(ValueError, match="different utterances"):
        average([errors([0, 4]), errors([0])])


def test_two_utterances():
    """One is wrong in one encoder alone: 0, 50 or 100, with odds of 1 to 2 to 1."""
    difference = compare(errors([0, 1]), errors([0, 0]))
    assert (difference.value, difference.low, difference.high) == (50, 0, 100)


def test_error_rate_is_a_ratio_of_sums():
    difference = compare(errors([10, 0], [10, 90]), errors([0, 0], [10, 90]))
    assert difference.value == pytest.approx(10)
    assert difference.high == pytest.approx(100)


def test_interval_of_equally_long_utterances_is_that_of_a_mean():
    generator = np.random.default_rng(1)
    characters = np.full(3000, 50)
    reference = generator.poisson(10, 3000)
    own = generator.poisson(9, 3000)
    difference = compare(errors(own, characters), errors(reference, characters))
    paired = 100 * (own - reference) / 50
    margin = 1.96 * paired.std() / np.sqrt(3000)
    assert difference.value == pytest.approx(paired.mean())
    assert difference.low == pytest.approx(paired.mean() - margin, abs=0.1 * margin)
    assert difference.high == pytest.approx(paired.mean() + margin, abs=0.1 * margin)


def test_what_both_get_wrong_does_not_widen_the_interval():
    generator = np.random.default_rng(2)
    hard = generator.poisson(20, 500)
    own, reference = generator.poisson(1, (2, 500))
    easy = compare(errors(own), errors(reference))
    both = compare(errors(own + hard), errors(reference + hard))
    for name in ("value", "low", "high"):
        assert getattr(both, name) == pytest.approx(getattr(easy, name))


def test_a_single_utterance_has_no_interval():
    difference = compare(errors([1], [4]), errors([0], [4]))
    assert (difference.value, difference.low, difference.high) == (25, None, None)


def test_equal_encoders():
    difference = compare(errors([1, 0, 3]), errors([1, 0, 3]))
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)


def test_different_utterances_are_refused():
    with pytest.raises(ValueError, match="different utterances"):
        compare(errors([1, 0]), errors([1, 0, 3]))
