"""What create_dataset finds wrong in a corpus, and what it remembers."""

import os
import shutil

import numpy as np
import pytest
import soundfile
from omegaconf import OmegaConf


class Recipe:
    """A copy of the AN4 corpus and the builder that checks it."""

    def __init__(self, corpus, dataset_module, tmp_path):
        self.source_dir = tmp_path / "corpus"
        shutil.copytree(corpus.source_dir, self.source_dir)
        self.data_dir = tmp_path / "data"
        self.dataset_module = dataset_module
        self.splits = [corpus.train, corpus.valid, corpus.test]
        self.chapter = self.source_dir / corpus.train / "fash" / "1"
        self.audio = self.chapter / "fash-1-0001.sph"
        self.transcript = self.chapter / "fash-1.trans.txt"

    def arguments(self, **options):
        return {
            "source_dir": self.source_dir,
            "data_dir": self.data_dir,
            "splits": self.splits,
            **options,
        }

    def is_built(self, **options):
        return self.dataset_module.DatasetBuilder().is_built(
            **self.arguments(**options)
        )

    def build(self, **options):
        self.dataset_module.DatasetBuilder().build(**self.arguments(**options))

    def problems(self):
        """Build, which must fail, and return the message."""
        with pytest.raises(ValueError) as caught:
            self.build()
        assert type(caught.value).__name__ == "CorpusError"
        return str(caught.value)

    def names(self, split="train-an4"):
        dataset = self.dataset_module.Dataset(split, self.source_dir, self.data_dir)
        return [utterance.utt_id for utterance in dataset.utterances]


@pytest.fixture
def recipe(an4_corpus, dataset_module, tmp_path):
    return Recipe(an4_corpus, dataset_module, tmp_path)


@pytest.fixture
def opened(monkeypatch):
    """Names of the audio files that are opened."""
    names = []
    sound_file = soundfile.SoundFile

    def open_and_count(path, *args, **options):
        names.append(os.path.basename(path))
        return sound_file(path, *args, **options)

    monkeypatch.setattr(soundfile, "SoundFile", open_and_count)
    return names


def test_whole_corpus(recipe, opened):
    assert not recipe.is_built()
    recipe.build()
    assert recipe.is_built()
    assert len(opened) == 7
    assert recipe.names() == [
        "fash-1-0000",
        "fash-1-0001",
        "mwhw-1-0000",
        "mwhw-1-0001",
    ]


def test_lists_and_mappings_of_omegaconf(recipe):
    recipe.build(splits=OmegaConf.create(recipe.splits))
    assert recipe.is_built(splits=OmegaConf.create(recipe.splits))


def test_default_config_of_espnet3_is_accepted(recipe):
    recipe.build(func="src.create", dataset_dir="/data", corpus=None)


def test_mistyped_option_is_refused(recipe):
    with pytest.raises(TypeError, match="skip_broken"):
        recipe.build(skip_broken=True)


def append(path, line):
    with path.open("ab") as file:
        file.write(line)


def no_audio_file(recipe):
    append(recipe.transcript, b"fash-1-0002 STOP\n")
    return f"{recipe.transcript}:3: no audio file", "fash-1-0002"


def no_transcript_line(recipe):
    shutil.copy(recipe.audio, recipe.chapter / "fash-1-0002.wav")
    return (f"{recipe.chapter / 'fash-1-0002.wav'}: audio without a transcript",)


def no_transcript_file(recipe):
    recipe.transcript.unlink()
    return (f"{recipe.audio}: audio without a transcript", "2 problems")


def empty_transcript(recipe):
    shutil.copy(recipe.audio, recipe.chapter / "fash-1-0002.sph")
    append(recipe.transcript, b"fash-1-0002 \n")
    return (f"{recipe.transcript}:3: empty transcript of fash-1-0002",)


def undecodable_transcript(recipe):
    shutil.copy(recipe.audio, recipe.chapter / "fash-1-0002.sph")
    append(recipe.transcript, b"\nfash-1-0002 CAF\xc9\n")
    return f"{recipe.transcript}:4: not UTF-8", "1 problem"


def name_used_twice(recipe):
    append(recipe.transcript, b"fash-1-0000 NO\n")
    return (
        f"{recipe.transcript}:3: utterance fash-1-0000 is also in "
        f"{recipe.transcript}:1",
    )


def two_audio_files(recipe):
    shutil.copy(recipe.audio, recipe.audio.with_suffix(".wav"))
    return f"{recipe.transcript}:2: several audio files", "fash-1-0001.wav"


def empty_audio(recipe):
    recipe.audio.write_bytes(b"")
    return (f"{recipe.audio}: empty file",)


def dangling_link(recipe):
    recipe.audio.unlink()
    recipe.audio.symlink_to(recipe.data_dir / "gone.sph")
    return f"{recipe.transcript}:2: unreadable audio", str(recipe.audio)


def no_audio_at_all(recipe):
    recipe.audio.write_bytes(b"<html>404 Not Found</html>")
    return (f"{recipe.audio}: unreadable audio",)


def truncated_audio(recipe):
    speech, rate = soundfile.read(recipe.audio)
    audio = recipe.audio.with_suffix(".flac")
    recipe.audio.unlink()
    soundfile.write(audio, speech, rate)
    os.truncate(audio, audio.stat().st_size - 100)
    return (f"{audio}: unreadable audio",)


def wav_without_its_second_half(recipe):
    speech, rate = soundfile.read(recipe.audio)
    audio = recipe.audio.with_suffix(".wav")
    recipe.audio.unlink()
    soundfile.write(audio, speech, rate)
    os.truncate(audio, audio.stat().st_size // 2)
    return (f"{audio}: ends early",)


def sphere_without_its_end(recipe):
    os.truncate(recipe.audio, recipe.audio.stat().st_size - 100)
    return (f"{recipe.audio}: ends early: 100 bytes",)


def flac_that_breaks_in_the_middle(recipe):
    speech, rate = soundfile.read(recipe.audio)
    audio = recipe.audio.with_suffix(".flac")
    recipe.audio.unlink()
    soundfile.write(audio, speech, rate)
    content = bytearray(audio.read_bytes())
    content[len(content) // 2] ^= 0xFF
    audio.write_bytes(content)
    return (f"{audio}: unreadable audio",)


def flac_of_a_stream(recipe):
    speech, rate = soundfile.read(recipe.audio)
    audio = recipe.audio.with_suffix(".flac")
    recipe.audio.unlink()
    soundfile.write(audio, speech, rate)
    content = bytearray(audio.read_bytes())
    content[21] &= 0xF0  # The number of samples has 36 bits.
    content[22:26] = bytes(4)
    audio.write_bytes(content)
    return (f"{audio}: its header does not tell its length: encode it again",)


def another_format(recipe):
    append(recipe.transcript, b"fash-1-0002 STOP\n")
    speech, rate = soundfile.read(recipe.audio)
    soundfile.write(recipe.chapter / "fash-1-0002.mp3", speech, rate)
    return (
        f"{recipe.transcript}:3: no audio file {recipe.chapter}/fash-1-0002.flac "
        "(or .wav, .sph), but fash-1-0002.mp3: convert it",
    )


def transcript_in_utf16(recipe):
    recipe.transcript.write_text(recipe.transcript.read_text(), encoding="utf-16")
    return f"{recipe.transcript}: not UTF-8 but UTF-16", "1 problem in the corpus"


def transcript_that_is_a_dangling_link(recipe):
    recipe.transcript.unlink()
    recipe.transcript.symlink_to(recipe.data_dir / "gone.txt")
    return f"{recipe.transcript}: unreadable: No such file", "1 problem"


def name_in_latin1(recipe):
    name = os.fsencode(recipe.chapter) + b"/fash-1-caf\xe9.sph"
    with open(name, "wb") as file:
        file.write(recipe.audio.read_bytes())
    return (f"{recipe.chapter}/fash-1-caf\\xe9.sph: audio without a transcript",)


def audio_of_no_samples(recipe):
    soundfile.write(recipe.audio, np.zeros(0), 16000, format="NIST")
    return (f"{recipe.audio}: 0 samples",)


def very_long_audio(recipe):
    soundfile.write(recipe.audio, np.zeros(301 * 16000), 16000, format="NIST")
    return (f"{recipe.audio}: 4816000 samples, should be 300 s or less",)


def no_number(recipe):
    audio = recipe.audio.with_suffix(".wav")
    recipe.audio.unlink()
    speech = np.zeros(40000)
    speech[-1] = np.nan
    soundfile.write(audio, speech, 16000, "FLOAT")
    return (f"{audio}: has infinite samples, or some that are no number",)


def other_sample_rate(recipe):
    speech, _ = soundfile.read(recipe.audio)
    soundfile.write(recipe.audio, speech, 8000, format="NIST")
    return (f"{recipe.audio}: sample rate 8000 Hz",)


def stereo(recipe):
    speech, rate = soundfile.read(recipe.audio)
    soundfile.write(recipe.audio, np.stack([speech, speech], 1), rate, format="NIST")
    return (f"{recipe.audio}: 2 channels",)


FAULTS = [
    no_audio_file,
    no_transcript_line,
    no_transcript_file,
    empty_transcript,
    undecodable_transcript,
    name_used_twice,
    two_audio_files,
    empty_audio,
    dangling_link,
    no_audio_at_all,
    truncated_audio,
    wav_without_its_second_half,
    sphere_without_its_end,
    flac_that_breaks_in_the_middle,
    flac_of_a_stream,
    another_format,
    transcript_in_utf16,
    transcript_that_is_a_dangling_link,
    name_in_latin1,
    audio_of_no_samples,
    very_long_audio,
    no_number,
    other_sample_rate,
    stereo,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("after_a_first_run", [False, True])
def test_fault_is_named_and_nothing_used(recipe, fault, after_a_first_run):
    if after_a_first_run:
        recipe.build()
    expected = fault(recipe)
    assert not recipe.is_built()
    message = recipe.problems()
    assert all(part in message for part in expected), message
    assert "skip_broken_utterances" in message
    listing = (recipe.data_dir / "corpus_problems.txt").read_text()
    assert expected[0] in listing
    # Starting training without create_dataset is no way round it.
    with pytest.raises(ValueError, match="problems? in the corpus"):
        recipe.names()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_is_whole_is_used_on_request(recipe, fault, caplog):
    expected = fault(recipe)
    with caplog.at_level("WARNING"):
        recipe.build(skip_broken_utterances=True)
    assert expected[0] in caplog.text
    names = recipe.names()
    assert {"mwhw-1-0000", "mwhw-1-0001"} <= set(names)
    assert "fash-1-0002" not in names
    # Left out each time, not forgotten.
    assert not recipe.is_built()
    assert expected[0] in recipe.problems()


def test_least_length_is_that_of_the_model(recipe, opened):
    soundfile.write(recipe.audio, np.zeros(1000), 16000, format="NIST")
    recipe.build(min_samples=1000)
    assert recipe.is_built(min_samples=1000)
    # Another model needs more, which the lengths that were read tell.
    opened.clear()
    assert not recipe.is_built(min_samples=1001)
    with pytest.raises(
        ValueError, match=f"{recipe.audio}: 1000 samples, should be 1001 or more"
    ):
        recipe.build(min_samples=1001)
    recipe.build(min_samples=1001, skip_broken_utterances=True)
    assert "fash-1-0001" not in recipe.names()
    assert set(opened) == {recipe.audio.name}
    recipe.build(min_samples=1000)
    assert "fash-1-0001" in recipe.names()


def test_clipped_and_silent_audio_is_used(recipe):
    speech, rate = soundfile.read(recipe.audio)
    soundfile.write(recipe.audio, np.sign(speech), rate, format="NIST")
    other = recipe.audio.with_name("fash-1-0000.sph")
    soundfile.write(other, 0 * speech, rate, format="NIST")
    recipe.build()
    assert len(recipe.names()) == 4


def test_spaces_of_any_kind_part_words(recipe):
    # ESPnet would strip the last two off its list of tokens.
    recipe.transcript.write_text(
        "fash-1-0000 YES\nfash-1-0001 GO\tON\u00a0AND\u3000ON\u2028\n"
    )
    recipe.build()
    dataset = recipe.dataset_module.Dataset(
        "train-an4", recipe.source_dir, recipe.data_dir
    )
    assert dataset.utterances[1].text == "GO ON AND ON"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_byte_order_marks_and_line_endings_are_no_part_of_names(recipe, ending):
    lines = ["\ufefffash-1-0000 YES", "", "\ufefffash-1-0001 GO", ""]
    recipe.transcript.write_bytes(ending.join(lines).encode())
    recipe.build()
    assert recipe.names()[:2] == ["fash-1-0000", "fash-1-0001"]


def test_accents_may_be_apart_from_their_letters(recipe):
    together, apart = "fash-1-caf\u00e9", "fash-1-cafe\u0301"
    for name, other in ((together, apart), (apart, together)):
        recipe.transcript.write_text(f"fash-1-0000 YES\n{name} GO\n")
        recipe.audio = recipe.audio.rename(recipe.chapter / f"{other}.SPH")
        recipe.build()
        assert recipe.names()[:2] == ["fash-1-0000", together]


def test_hidden_files_are_not_of_the_corpus(recipe):
    for hidden in ("._fash-1-0000.sph", "._fash-1.trans.txt"):
        (recipe.chapter / hidden).write_bytes(b"\x00\x05\x16\x07")
    (recipe.chapter / ".Trash").mkdir()
    shutil.copy(recipe.audio, recipe.chapter / ".Trash" / "fash-1-0009.sph")
    recipe.build()
    assert len(recipe.names()) == 4


def test_links_that_lead_back_are_not_followed(recipe, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "back").symlink_to(recipe.source_dir / "train-an4")
    (elsewhere / "self").symlink_to(elsewhere)
    (recipe.chapter / "chapter").symlink_to(recipe.chapter)
    (recipe.chapter / "corpus").symlink_to(recipe.source_dir)
    (recipe.chapter / "elsewhere").symlink_to(elsewhere)
    recipe.build()
    assert len(recipe.names()) == 4


def test_directory_of_an_utterance_s_name_is_no_audio(recipe):
    recipe.audio.unlink()
    recipe.audio.mkdir()
    assert f"{recipe.transcript}:2: no audio file" in recipe.problems()


def test_any_name_of_a_directory_is_read_back(recipe):
    odd = recipe.source_dir.with_name('"tab\t, quote" and\u2028others')
    recipe.source_dir = recipe.source_dir.rename(odd)
    recipe.build()
    assert recipe.is_built()
    assert len(recipe.names()) == 4


def test_manifest_of_a_version_that_did_not_decode_is_not_believed(recipe, opened):
    recipe.build()
    for path in (recipe.data_dir / "manifest").iterdir():
        path.write_text(path.read_text().replace("decoded_samples", "num_samples", 1))
    opened.clear()
    assert not recipe.is_built()
    recipe.build()
    assert len(opened) == 7


def test_name_used_twice_is_not_used_at_all(recipe):
    name_used_twice(recipe)
    recipe.build(skip_broken_utterances=True)
    assert recipe.names() == ["fash-1-0001", "mwhw-1-0000", "mwhw-1-0001"]


def test_all_faults_are_reported_together(recipe):
    expected = [
        *no_audio_file(recipe),
        *empty_audio(recipe),
    ]
    (recipe.source_dir / "test-an4" / "mmxg" / "1" / "mmxg-1-0000.sph").write_bytes(b"")
    recipe.splits.append("test-other")
    message = recipe.problems()
    assert "3 problems" in message
    assert all(part in message for part in expected)
    assert "mmxg-1-0000.sph: empty file" in message
    assert "No subset 'test-other'" in message


def test_long_list_is_cut_short_in_the_message_only(recipe):
    append(
        recipe.transcript,
        b"".join(b"fash-1-%04d STOP\n" % number for number in range(100, 200)),
    )
    message = recipe.problems()
    assert "100 problems" in message and "and 80 more" in message
    listing = recipe.data_dir / "corpus_problems.txt"
    assert str(listing) in message
    assert len(listing.read_text().splitlines()) == 100


def test_listing_goes_away_with_the_problems(recipe):
    whole = recipe.audio.read_bytes()
    empty_audio(recipe)
    recipe.problems()
    recipe.audio.write_bytes(whole)
    recipe.build()
    assert not (recipe.data_dir / "corpus_problems.txt").exists()
    assert len(recipe.names()) == 4


@pytest.mark.parametrize("skip", [False, True])
def test_missing_subset_is_named(recipe, skip):
    recipe.splits = ["train-an4", "dev-clean"]
    with pytest.raises(ValueError, match=r"'dev-clean'.*dev-an4, test-an4, train-an4"):
        recipe.build(skip_broken_utterances=skip)


@pytest.mark.parametrize("skip", [False, True])
def test_subset_without_anything_whole_is_refused(recipe, skip):
    (recipe.source_dir / "dev-an4" / "fbbh" / "1" / "fbbh-1.trans.txt").unlink()
    with pytest.raises(ValueError, match="Nothing to use in .*dev-an4"):
        recipe.build(skip_broken_utterances=skip)


def test_second_start_opens_nothing(recipe, opened):
    recipe.build()
    opened.clear()
    assert recipe.is_built()
    recipe.build()
    assert opened == []


def test_only_what_changed_is_opened_again(recipe, opened):
    recipe.build()
    opened.clear()
    speech, rate = soundfile.read(recipe.audio)
    soundfile.write(recipe.audio, speech[:-800], rate, format="NIST")
    shutil.copy(recipe.audio, recipe.chapter / "fash-1-0002.sph")
    append(recipe.transcript, b"fash-1-0002 STOP\n")
    opened.clear()
    assert not recipe.is_built()
    recipe.build()
    assert sorted(opened) == ["fash-1-0001.sph", "fash-1-0002.sph"]
    assert len(recipe.names()) == 5


def test_what_was_whole_is_not_opened_again_after_a_fault(recipe, opened):
    empty_audio(recipe)
    recipe.problems()
    opened.clear()
    recipe.problems()
    recipe.build(skip_broken_utterances=True)
    assert opened == []


def test_changed_transcript_is_read_again(recipe):
    recipe.build()
    recipe.transcript.write_text("fash-1-0000 YES\nfash-1-0001 GO ON\n")
    assert not recipe.is_built()
    recipe.build()
    assert [
        u.text
        for u in recipe.dataset_module.Dataset(
            "train-an4", recipe.source_dir, recipe.data_dir
        ).utterances
    ][:2] == ["YES", "GO ON"]


def test_corpora_of_equal_subset_names_are_not_mixed_up(recipe, tmp_path):
    recipe.build()
    shutil.copytree(recipe.source_dir, tmp_path / "other")
    recipe.source_dir = tmp_path / "other"
    (tmp_path / "other" / "train-an4" / "mwhw" / "1" / "mwhw-1.trans.txt").unlink()
    for audio in (tmp_path / "other").glob("train-an4/mwhw/1/*.sph"):
        audio.unlink()
    assert not recipe.is_built()
    assert recipe.names() == ["fash-1-0000", "fash-1-0001"]


def test_linked_speakers_are_followed(recipe, tmp_path):
    shutil.move(recipe.source_dir / "train-an4" / "fash", tmp_path / "fash")
    (recipe.source_dir / "train-an4" / "fash").symlink_to(tmp_path / "fash")
    recipe.build()
    assert len(recipe.names()) == 4
