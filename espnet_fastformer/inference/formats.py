"""Transcripts as people and programs read them."""

import dataclasses
import json
import unicodedata
from collections.abc import Iterable, Iterator

from espnet_fastformer.inference.transcript import Transcript, Word

# What fits on a screen and can be read from it. A line is in columns.
_LINE = 42
_LINES = 2
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
    cues = []
    for number, words in enumerate(_cues(transcript.words, space), start=1):
        start, end = _clock(words[0].start), _clock(words[-1].end)
        text = "\n".join(_wrap(words, space))
        cues.append(f"{number}\n{start} --> {end}\n{text}\n")
    return "\n".join(cues)


FORMATS = {"text": to_text, "json": to_json, "srt": to_srt}
SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt"}


def _cues(words: Iterable[Word], space: str) -> Iterator[list[Word]]:
    cue: list[Word] = []
    for word in words:
        if cue and (
            word.start - cue[-1].end > _LONGEST_PAUSE
            or word.end - cue[0].start > _LONGEST_CUE
            or len(_wrap([*cue, word], space)) > _LINES
        ):
            yield cue
            cue = []
        cue.append(word)
    if cue:
        yield cue


def _wrap(words: Iterable[Word], space: str) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and _width(line := lines[-1] + space + word.word) <= _LINE:
            lines[-1] = line
        else:
            lines.append(word.word)
    return lines


def _width(text: str) -> int:
    """Return the columns of a text; a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(c) in "FW" else 1 for c in text)


def _clock(seconds: float) -> str:
    milliseconds = round(1000 * seconds)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{seconds:02},{milliseconds:03}"
