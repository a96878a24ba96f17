import pytest
import soundfile

from tests.inference.models import noise

FS = 16000


@pytest.fixture
def corpus(tmp_path):
    """Three utterances in LibriSpeech's layout."""
    chapter = tmp_path / "corpus" / "test" / "1" / "2"
    chapter.mkdir(parents=True)
    lines = []
    for number, text in enumerate(("ONE", "TWO WORDS", "THREE")):
        utt_id = f"1-2-{number:04}"
        soundfile.write(chapter / f"{utt_id}.flac", noise(1 + number), FS)
        lines.append(f"{utt_id} {text}\n")
    (chapter / "1-2.trans.txt").write_text("".join(lines))
    return tmp_path / "corpus"
