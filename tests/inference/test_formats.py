import json
import re

from espnet_fastformer.inference.formats import to_json, to_srt, to_text
from espnet_fastformer.inference.transcript import Transcript, Word


def words(text: str, start: float = 0.0, length: float = 0.4) -> list[Word]:
    """Words that are said evenly, without a pause."""
    return [
        Word(word, start + length * i, start + length * (i + 1))
        for i, word in enumerate(text.split())
    ]


def test_text():
    assert to_text("a.wav", Transcript("ONE TWO")) == "ONE TWO\n"
    transcript = Transcript("ONE TWO", [Word("ONE", 0.5, 1), Word("TWO", 1.25, 3600)])
    assert to_text("a.wav", transcript) == "0.500\t1.000\tONE\n1.250\t3600.000\tTWO\n"


def test_json():
    assert json.loads(to_json("ä.wav", Transcript("ZWÖLF"))) == {
        "audio": "ä.wav",
        "text": "ZWÖLF",
    }
    line = to_json("a.wav", Transcript("ONE", [Word("ONE", 0.5, 1.0)]))
    assert json.loads(line)["words"] == [{"word": "ONE", "start": 0.5, "end": 1.0}]
    assert line.endswith("}\n")


def cues_of(srt: str) -> list[tuple[float, float, list[str]]]:
    """Read subtitles strictly: start and end in seconds, and lines of each."""
    cues = []
    for number, block in enumerate(srt.removesuffix("\n").split("\n\n"), start=1):
        index, times, *lines = block.split("\n")
        assert index == str(number)
        clock = r"(\d\d):([0-5]\d):([0-5]\d),(\d{3})"
        fields = [int(f) for f in re.fullmatch(f"{clock} --> {clock}", times).groups()]
        start, end = (
            h * 3600 + m * 60 + s + ms / 1000
            for h, m, s, ms in (fields[:4], fields[4:])
        )
        assert start < end and (not cues or cues[-1][1] <= start)
        assert lines and all(line == line.strip() != "" for line in lines)
        cues.append((start, end, lines))
    return cues


def test_srt_is_parted_at_pauses():
    said = [*words("GOOD MORNING"), *words("GOOD NIGHT AND REST", start=3723.5)]
    assert to_srt("a.wav", Transcript("", said)) == (
        "1\n00:00:00,000 --> 00:00:01,000\nGOOD MORNING\n"
        "\n"
        "2\n01:02:03,500 --> 01:02:05,100\nGOOD NIGHT AND REST\n"
    )


def test_srt_fits_a_screen():
    for length in (0.1, 2.0, 9.0):
        said = words("SUPERCALIFRAGILISTIC IS A WORD " * 20, length=length)
        cues = cues_of(to_srt("a.wav", Transcript("", said)))
        assert len(cues) >= 10
        assert max(len(lines) for *_, lines in cues) <= 2
        assert max(len(line) for *_, lines in cues for line in lines) <= 42
        assert max(end - start for start, end, _ in cues) <= 7
        text = " ".join(line for *_, lines in cues for line in lines)
        assert text.split() == [word.word for word in said]


def test_srt_lasts_a_second_where_the_next_allows():
    starts = [0.0, 1.5, 2.4, 10.0]
    said = [Word("WELL", start, start + 0.1) for start in starts]
    cues = cues_of(to_srt("a.wav", Transcript("WELL WELL WELL WELL", said)))
    assert [cue[:2] for cue in cues] == [(0, 1), (1.5, 2.5), (10, 11)]
    said = [Word("WELL", start, start + 0.1) for start in (0.0, 0.95)]
    cues = cues_of(to_srt("a.wav", Transcript("WELL WELL", said)))
    assert [cue[:2] for cue in cues] == [(0, 0.95), (0.95, 1.95)]


def test_srt_is_cut_at_the_longest_pause_near_the_middle():
    said = words(
        "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG WHILE THE OTHER DOGS BARK"
    )
    late = [Word(w.word, w.start + 0.5, w.end + 0.5) for w in said[9:]]
    more = words("LOUDLY AT THE MOON", start=late[-1].end)
    cues = cues_of(to_srt("a.wav", Transcript("", [*said[:9], *late, *more])))
    assert [lines for *_, lines in cues] == [
        ["THE QUICK BROWN FOX", "JUMPS OVER THE LAZY DOG"],
        ["WHILE THE OTHER DOGS", "BARK LOUDLY AT THE MOON"],
    ]


def test_srt_cuts_a_word_that_is_longer_than_a_line():
    for word in ("x" * 200, "อ" + "ที่" * 99, "漢" * 99):
        said = [Word("A", 0, 0.5), Word(word, 0.5, 20), Word("B", 20.1, 21)]
        cues = cues_of(to_srt("a.wav", Transcript(f"A {word} B", said)))
        lines = [line for *_, lines in cues for line in lines]
        assert "".join(lines).replace(" ", "") == f"A{word}B"
        columns = 21 if word[0] == "漢" else 42
        marks = sum(map(lines[1].count, "\u0e35\u0e48"))
        assert max(map(len, lines)) <= columns + marks
        assert all(end - start <= 7 for start, end, _ in cues)


def test_srt_of_a_text_without_spaces_has_none():
    text = "今日は良い天気ですね" * 20
    said = words(" ".join(text), length=0.1)
    blocks = to_srt("a.wav", Transcript(text, said)).strip().split("\n\n")
    lines = [line for block in blocks for line in block.split("\n")[2:]]
    assert "".join(lines) == text
    assert len(lines) <= 2 * len(blocks)
    # A character is two columns wide.
    assert 10 < max(map(len, lines)) <= 21


def test_srt_of_silence_is_empty():
    assert to_srt("a.wav", Transcript("", [])) == ""
