"""What is said in a recording, and when."""

from dataclasses import dataclass


@dataclass
class Word:
    """A word, and its start and end in seconds."""

    word: str
    start: float
    end: float


@dataclass
class Transcript:
    """The text; ``words`` is None where their times were not asked for."""

    text: str
    words: list[Word] | None = None
