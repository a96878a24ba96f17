"""Transcripts as people and programs read them."""

import dataclasses
import json
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from espnet_fastformer.inference.transcript import Transcript, Word

# What fits on a screen and can be read from it. A line is in columns.
_LINE = 42
_SHORTEST_CUE = 1.0
_LONGEST_CUE = 7.0
_LONGEST_PAUSE = 0.8


def to_text(name: str, transcript: Transcript) -> str:
    """Write the text in a line, or ``START END WORD`` in seconds, tabs between."""
    if transcript.words is None:
        return transcript.text + "\n"
    return "".join(f"{w.start:.3f}\t{w.end:.3f}\t{w.word}\n" for w in transcript.words)


def to_json(name: str, transcript: Transcript) -> str:
    """Write one line with an object: ``audio``, ``text``, and ``words`` if known."""
    content = {"audio": name, **dataclasses.asdict(transcript)}
    if transcript.words is None:
        del content["words"]
    return json.dumps(content, ensure_ascii=False) + "\n"


def to_srt(name: str, transcript: Transcript) -> str:
    """Write subtitles of at most two lines, parted where there are pauses."""
    # Without spaces where the text has none, as in Chinese.
    said = "".join(word.word for word in transcript.words)
    space = "" if transcript.text == said else " "
    cues = list(_cues(_pieces(transcript.words, space)))
    starts = [*(cue[0].start for cue in cues), math.inf]
    blocks = []
    for number, (cue, next_start) in enumerate(
        zip(cues, starts[1:], strict=True), start=1
    ):
        start = cue[0].start
        end = min(max(cue[-1].end, start + _SHORTEST_CUE), next_start)
        times = f"{_clock(start)} --> {_clock(min(end, start + _LONGEST_CUE))}"
        blocks.append("\n".join([str(number), times, *_wrap(cue), ""]))
    return "\n".join(blocks)


FORMATS = {"text": to_text, "json": to_json, "srt": to_srt}
SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt"}


def _pieces(words: Iterable[Word], space: str) -> Iterator[Word]:
    """Cut words that are longer than a line, and put a space after each word."""
    for word in words:
        pieces = [""]
        for character in word.word:
            if _width(pieces[-1] + character) > _LINE:
                pieces.append("")
            pieces[-1] += character
        seconds = (word.end - word.start) / len(pieces)
        pieces[-1] += space
        for index, piece in enumerate(pieces):
            start = word.start + index * seconds
            yield Word(piece, start, start + seconds)


def _cues(pieces: Iterable[Word]) -> Iterator[list[Word]]:
    """Part a text at long pauses, and what is too much for a subtitle near its middle.

    There, too, at the longest pause.
    """
    part: list[Word] = []
    for piece in pieces:
        if part and piece.start - part[-1].end > _LONGEST_PAUSE:
            yield from _halves(part)
            part = []
        part.append(piece)
    if part:
        yield from _halves(part)


def _halves(part: list[Word]) -> Iterator[list[Word]]:
    is_short = part[-1].end - part[0].start <= _LONGEST_CUE
    if len(part) == 1 or is_short and _wrap(part) is not None:
        yield part
        return
    quarter = len(part) // 4
    middle = max(
        range(max(quarter, 1), len(part) - quarter),
        key=lambda i: (
            round(part[i].start - part[i - 1].end, 1),
            -abs(i - len(part) / 2),
        ),
    )
    yield from _halves(part[:middle])
    yield from _halves(part[middle:])


def _wrap(pieces: Sequence[Word]) -> list[str] | None:
    """Return one line, or two that differ least in length; None if it takes more."""
    words = [piece.word for piece in pieces]
    width = _width(line := "".join(words).rstrip())
    if width <= _LINE:
        return [line]
    if width > 2 * _LINE + 1:
        return None
    breaks = [
        ["".join(words[:i]).rstrip(), "".join(words[i:]).rstrip()]
        for i in range(1, len(words))
    ]
    lines = min(breaks, key=lambda lines: max(map(_width, lines)))
    return lines if max(map(_width, lines)) <= _LINE else None


def _width(text: str) -> int:
    """Return the columns of a text; a Chinese character takes two, an accent none."""
    wide = sum(unicodedata.east_asian_width(c) in "FW" for c in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _clock(seconds: float) -> str:
    milliseconds = round(1000 * seconds)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{seconds:02},{milliseconds:03}"
