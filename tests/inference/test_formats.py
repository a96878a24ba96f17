import json

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


def test_srt_is_parted_at_pauses():
    said = [*words("GOOD MORNING"), *words("GOOD NIGHT", start=3723.5)]
    assert to_srt("a.wav", Transcript("", said)) == (
        "1\n00:00:00,000 --> 00:00:00,800\nGOOD MORNING\n"
        "\n"
        "2\n01:02:03,500 --> 01:02:04,300\nGOOD NIGHT\n"
    )


def test_srt_fits_a_screen():
    for length in (0.1, 2.0):
        said = words("SUPERCALIFRAGILISTIC IS A WORD " * 20, length=length)
        blocks = to_srt("a.wav", Transcript("", said)).split("\n\n")
        assert len(blocks) >= 10
        text = []
        for number, block in enumerate(blocks, start=1):
            index, times, *lines = block.strip().split("\n")
            assert int(index) == number
            assert 1 <= len(lines) <= 2
            assert max(map(len, lines)) <= 42
            text += lines
        assert " ".join(text).split() == [word.word for word in said]


def test_srt_of_a_text_without_spaces_has_none():
    text = "今日は良い天気ですね" * 20
    said = words(" ".join(text), length=0.1)
    blocks = to_srt("a.wav", Transcript(text, said)).strip().split("\n\n")
    lines = [line for block in blocks for line in block.split("\n")[2:]]
    assert "".join(lines) == text
    assert len(lines) <= 2 * len(blocks)
    # A character is two columns wide.
    assert max(map(len, lines)) == 21


def test_srt_of_silence_is_empty():
    assert to_srt("a.wav", Transcript("", [])) == ""
