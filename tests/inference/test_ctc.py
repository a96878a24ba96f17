from itertools import groupby
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espnet_fastformer.inference.ctc import (
    Span,
    collapse,
    group_words,
    part_at_pauses,
    silent_tokens,
)


@given(st.lists(st.integers(0, 4), max_size=50))
def test_repeats_and_silent_tokens_go(path):
    spans = collapse(torch.tensor(path, dtype=torch.long), {0, 4})
    expected = [token for token, _ in groupby(path) if token not in (0, 4)]
    assert [span.token for span in spans] == expected
    held = [0] * len(path)
    for token, start, end in spans:
        assert start < end
        held[start:end] = [token] * (end - start)
    assert held == [token if token not in (0, 4) else 0 for token in path]


def test_blanks_of_a_transducer_are_silent():
    model = SimpleNamespace(blank_id=0, sos=9, eos=9)
    assert silent_tokens(model) == {0, 9}
    model.blank_id, model.transducer_multi_blank_durations = 2, [4, 2]
    assert silent_tokens(model) == {0, 1, 2, 9}
    # In a token list without ESPnet's <blank>, its CTC loss still takes the first.
    model = SimpleNamespace(blank_id=3, sos=9, eos=9)
    assert silent_tokens(model) == {0, 3, 9}


def test_a_blank_parts_the_same_token():
    spans = collapse(torch.tensor([0, 2, 2, 0, 2, 3]), {0})
    assert spans == [Span(2, 1, 3), Span(2, 4, 5), Span(3, 5, 6)]


def test_a_pause_ends_a_word():
    spans = [Span(2, 1, 3), Span(3, 7, 8), Span(4, 13, 14), Span(1, 30, 31)]
    assert part_at_pauses(spans, 1, 4) == [
        *spans[:2],
        Span(1, 8, 13),
        spans[2],
        Span(1, 14, 30),
        spans[3],
    ]
    assert part_at_pauses([], 1, 4) == []


@pytest.mark.parametrize(
    "token_type, tokens, words",
    [
        ("char", "A B <space> C D", [[0, 1], [3, 4]]),
        ("char", "<space> A <space> <space> B <space>", [[1], [4]]),
        ("bpe", "▁A B ▁C ▁ D", [[0, 1], [2], [3, 4]]),
        ("bpe", "A ▁B", [[0], [1]]),
        ("word", "A B", [[0], [1]]),
        ("char", "", []),
    ],
)
def test_words(token_type, tokens, words):
    assert group_words(tokens.split(), token_type, "<space>") == words
