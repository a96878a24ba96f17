"""Greedy CTC decoding, with the place of each token and word in the recording."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from espnet2.train.abs_espnet_model import AbsESPnetModel

#: The blank of ESPnet's CTC loss, whatever the model's ``blank_id``: a multi-blank
#: transducer has its long blanks before ``<blank>`` in the token list.
BLANK = 0
#: Types of tokens that tell where a word begins.
WORDED = ("char", "bpe", "word")


class Span(NamedTuple):
    """A token and the output frames from ``start`` to before ``end`` that it holds."""

    token: int
    start: int
    end: int


def silent_tokens(model: AbsESPnetModel) -> set[int]:
    """Return the tokens that are no text: all blanks, and the end of a sentence."""
    durations = getattr(model, "transducer_multi_blank_durations", ())
    blanks = range(model.blank_id - len(durations), model.blank_id + 1)
    return {BLANK, *blanks, model.sos, model.eos}


def collapse(path: torch.Tensor, silent: Collection[int]) -> list[Span]:
    """Merge repeated tokens, then drop the silent ones.

    Args:
        path: Best token of each frame (T,), an integer tensor.
        silent: Tokens that are no text.
    """
    tokens, counts = torch.unique_consecutive(path, return_counts=True)
    ends = counts.cumsum(0)
    spans = torch.stack([tokens, ends - counts, ends], dim=1)
    is_silent = torch.isin(tokens, torch.tensor(list(silent), device=path.device))
    return [Span(*span) for span in spans[~is_silent].tolist()]


def part_at_pauses(spans: Sequence[Span], space: int, pause: float) -> list[Span]:
    """Put a space where nothing was said for longer than a pause.

    A model of characters learns to write a space between two words of an utterance,
    but not between two utterances.

    Args:
        spans: Tokens.
        space: Token between two words.
        pause: Frames between two tokens of a word at most.
    """
    parted: list[Span] = []
    for span in spans:
        if parted and span.start - parted[-1].end > pause:
            parted.append(Span(space, parted[-1].end, span.start))
        parted.append(span)
    return parted


def group_words(
    tokens: Sequence[str], token_type: str, space_symbol: str
) -> list[list[int]]:
    """Find the words that tokens spell.

    Args:
        tokens: Tokens of ESPnet's ``token_list``.
        token_type: One of ``WORDED``.
        space_symbol: Token between two words of ``char``.

    Returns:
        Indices of the tokens of each word.
    """

    def starts_word(token: str) -> bool:
        if token_type == "bpe":
            return token.startswith("▁")
        return token_type == "word" or token == space_symbol

    words: list[list[int]] = [[]]
    for index, token in enumerate(tokens):
        if starts_word(token):
            words.append([])
        if token != space_symbol:
            words[-1].append(index)
    return [word for word in words if word]
