"""The synthetic corpus: what is in it, and how it is made."""

import hashlib
import sys
from collections import Counter

import numpy as np
import pytest
import soundfile
from espnet3.components.data.dataset_module import load_dataset_module

from .conftest import RECIPE_DIR, TINY_SYNTHETIC

# The module is imported under a name that ESPnet3 makes up.
synthetic = sys.modules[
    load_dataset_module(recipe_dir=RECIPE_DIR).CORPORA["synthetic"].__module__
]
SUBSETS = ("train-synthetic", "dev-synthetic", "test-synthetic")


@pytest.fixture
def make(dataset_module):
    def make(source_dir, **options):
        builder = dataset_module.DatasetBuilder()
        arguments = {
            "source_dir": source_dir,
            "corpus": "synthetic",
            "corpus_conf": {**TINY_SYNTHETIC, "n_workers": 1, **options},
        }
        if not builder.is_source_prepared(**arguments):
            builder.prepare_source(**arguments)
        assert builder.is_source_prepared(**arguments)

    return make


def transcripts(corpus, subset):
    return {
        line.split()[0]: line.split()[1:]
        for path in sorted((corpus.source_dir / subset).glob("*/*/*.trans.txt"))
        for line in path.read_text().splitlines()
    }


def digests(source_dir):
    return {
        str(path.relative_to(source_dir)): hashlib.sha256(path.read_bytes()).digest()
        for path in sorted(source_dir.rglob("*"))
        if path.is_file()
    }


def test_subsets_share_no_sentence_and_no_speaker(synthetic_corpus):
    words = {subset: transcripts(synthetic_corpus, subset) for subset in SUBSETS}
    sentences = Counter(
        " ".join(words) for subset in words.values() for words in subset.values()
    )
    assert sentences.total() == sum(map(len, words.values())) == len(sentences)
    speakers = [{utt_id.split("-")[0] for utt_id in words[s]} for s in SUBSETS]
    assert sum(map(len, speakers)) == len(set.union(*speakers))


def test_large_plan_shares_no_sentence_and_covers_its_words(tmp_path):
    corpus = synthetic.SyntheticCorpus(tmp_path, train_hours=5.0)
    texts = {
        subset: [reading.text for reading in readings]
        for subset, readings in corpus.plan().items()
    }
    everything = [text for subset in texts.values() for text in subset]
    assert len(everything) == len(set(everything)) > 3000
    words = {s: {w for text in texts[s] for w in text.split()} for s in SUBSETS}
    assert words["dev-synthetic"] | words["test-synthetic"] <= words["train-synthetic"]
    assert 200 < len(words["train-synthetic"]) < 500
    assert all(
        text.replace(" ", "").isalpha() and text.isupper() for text in everything
    )


def test_test_speech_does_not_depend_on_the_training_hours(tmp_path):
    small, large = (
        synthetic.SyntheticCorpus(tmp_path, train_hours=hours).plan()
        for hours in (0.1, 2.0)
    )
    assert small["test-synthetic"] == large["test-synthetic"]
    assert small["dev-synthetic"] == large["dev-synthetic"]
    assert len(small["train-synthetic"]) < len(large["train-synthetic"])


def test_audio_is_speech_of_the_expected_amount(synthetic_corpus):
    hours = Counter()
    for subset in SUBSETS:
        for utt_id, words in transcripts(synthetic_corpus, subset).items():
            (path,) = (synthetic_corpus.source_dir / subset).glob(f"*/*/{utt_id}.flac")
            speech, rate = soundfile.read(path)
            assert rate == 16000 and speech.ndim == 1
            assert 0.1 < np.abs(speech).max() < 0.99
            # 100 ms frames: most of an utterance is not silence.
            frames = speech[: len(speech) // 1600 * 1600].reshape(-1, 1600)
            assert (np.sqrt((frames**2).mean(axis=1)) > 0.01).mean() > 0.5
            assert 1 < len(words) / (len(speech) / rate) < 5
            hours[subset] += len(speech) / rate / 3600
    # A subset ends with the utterance that completes it.
    assert hours["train-synthetic"] == pytest.approx(0.02, abs=0.003)
    assert hours["dev-synthetic"] == pytest.approx(0.005, abs=0.003)


def median_pitch(speech, rate=16000):
    """Median over the loud frames of the pitch (Hz), by autocorrelation."""
    frames = np.lib.stride_tricks.sliding_window_view(speech, rate // 20)[::160]
    energy = (frames**2).sum(axis=1)
    frames = frames[energy > np.median(energy)]
    spectrum = np.fft.rfft(frames, n=2 * frames.shape[1])
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)
    lags = np.arange(rate // 400, rate // 80)
    return rate / np.median(lags[correlation[:, lags].argmax(axis=1)])


def test_ratio_moves_the_pitch_and_keeps_the_tempo(tmp_path):
    def read(ratio):
        audio = tmp_path / f"{ratio}.flac"
        text = "THE OLD CAPTAIN WALKED SLOWLY TOWARD THE QUIET HARBOR"
        synthetic.synthesize(synthetic.Reading(audio, text, ratio, 1.0, 0))
        return soundfile.read(audio)[0]

    low, high = read(80), read(105)
    assert len(low) == pytest.approx(len(high), rel=0.2)
    assert median_pitch(low) / median_pitch(high) == pytest.approx(80 / 105, rel=0.05)


def test_equal_arguments_give_equal_files(synthetic_corpus, make, tmp_path):
    make(tmp_path / "again", n_workers=2)
    assert digests(tmp_path / "again") == digests(synthetic_corpus.source_dir)


def test_other_seed_gives_other_sentences(tmp_path):
    plans = [
        synthetic.SyntheticCorpus(tmp_path, **TINY_SYNTHETIC, seed=seed).plan()
        for seed in (0, 1)
    ]
    for subset in SUBSETS:
        first, second = ({reading.text for reading in p[subset]} for p in plans)
        assert not first & second


def test_goes_on_where_it_was_interrupted(
    synthetic_corpus, make, tmp_path, monkeypatch
):
    write = soundfile.write
    written = []

    def write_and_stop_in_the_fourth(path, speech, *args, **options):
        written.append(path)
        if len(written) == 4:
            write(path, speech[: len(speech) // 2], *args, **options)
            raise KeyboardInterrupt
        write(path, speech, *args, **options)

    monkeypatch.setattr(synthetic.soundfile, "write", write_and_stop_in_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "corpus")
    assert len(list((tmp_path / "corpus").rglob("*.flac"))) == 3
    make(tmp_path / "corpus")
    expected = digests(synthetic_corpus.source_dir)
    assert digests(tmp_path / "corpus") == expected
    # The first three were not made again, the fourth was.
    assert len(written) == sum(name.endswith(".flac") for name in expected) + 1


def test_finished_corpus_is_not_made_again(synthetic_corpus, make):
    before = {p: p.stat().st_mtime_ns for p in synthetic_corpus.source_dir.rglob("*")}
    make(synthetic_corpus.source_dir)
    after = {p: p.stat().st_mtime_ns for p in synthetic_corpus.source_dir.rglob("*")}
    assert after == before


def test_lost_file_is_made_again(synthetic_corpus, make):
    before = digests(synthetic_corpus.source_dir)
    next(synthetic_corpus.source_dir.rglob("*.flac")).unlink()
    make(synthetic_corpus.source_dir)
    assert digests(synthetic_corpus.source_dir) == before


def test_other_arguments_are_refused(synthetic_corpus, make):
    with pytest.raises(FileExistsError, match=r"'train_hours': 0\.02.*remove it"):
        make(synthetic_corpus.source_dir, train_hours=0.03)


def test_other_grammar_is_refused(synthetic_corpus, make, monkeypatch):
    """Old audio must not get new transcripts."""
    grammar = sys.modules[synthetic.generate_sentences.__module__].GRAMMAR
    monkeypatch.setitem(grammar, "person", ["pirate"])
    with pytest.raises(FileExistsError, match="remove it"):
        make(synthetic_corpus.source_dir)


def test_directory_of_something_else_is_refused(make, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match="something other"):
        make(tmp_path)


def test_no_hours_are_refused(make, tmp_path):
    with pytest.raises(ValueError, match="dev_hours"):
        make(tmp_path, dev_hours=0.0)


def test_unknown_option_is_refused(make, tmp_path):
    with pytest.raises(TypeError, match="train_minutes"):
        make(tmp_path, train_minutes=1)
