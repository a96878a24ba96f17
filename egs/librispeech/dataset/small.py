"""Two and a half hours of real speech, out of four public corpora.

ESPnet3 has no recipe for so little speech of so many kinds.

``small.txt`` has a line for each chapter, with what of which corpus is in it:

- ``a0571``, a prompt of CMU Arctic read in ``rhasspy/dataset-voice-kathleen`` (CC0),
  the first take of it or the one with the number that is given;
- ``LJ001-0013``, an utterance of LJSpeech (public domain);
- ``SPEAKER0135``, all utterances of a second-language speaker of speechocean762
  (CC BY 4.0);
- ``1688-142285``, the first ten utterances of a chapter of LibriSpeech (CC BY 4.0).

The two readers are in all subsets but ``test-other``, with other sentences; all other
speakers are in one. Nine prompts were read in two wordings and are there in both,
three of them once in ``train-small`` and once in another subset.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import soxr
from tqdm import tqdm
from typeguard import typechecked

from .corpus import SAMPLE_RATE
from .download import download

SELECTION = Path(__file__).with_name("small.txt")
# Where an archive keeps its audio, and where it is published.
KATHLEEN = "dataset-voice-kathleen*/data"
LJSPEECH = "LJSpeech-1.1/wavs"
SPEECHOCEAN = "speechocean762*/WAVE"
LIBRISPEECH = "LibriSpeech/test-other"
GITHUB = "https://github.com"
URLS = {
    KATHLEEN: f"{GITHUB}/rhasspy/dataset-voice-kathleen/archive/"
    "c51cb971036a127359b43c621f26ca5081eab13e.tar.gz",
    LJSPEECH: "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2",
    SPEECHOCEAN: f"{GITHUB}/jimbozhang/speechocean762/archive/"
    "613968e3b0b789fc33936fb5eba1973176ba7d11.tar.gz",
    LIBRISPEECH: "https://www.openslr.org/resources/12/test-other.tar.gz",
}

# Hidden, so that it is no subset.
OWN_SOURCES = ".sources"

Spoken = tuple[Path, str]


class SmallCorpus:
    """The corpus of ``docs/accuracy.md``.

    Args:
        source_dir: Root of the corpus.
        sources: Directory where archives of the four corpora, or clones, are unpacked.
            What is not there is downloaded to it. The default is a directory that is
            removed in the end.
    """

    splits = {
        "train": ["train-small"],
        "valid": ["dev-small"],
        "test": ["test-small", "test-other"],
    }

    @typechecked
    def __init__(
        self, source_dir: str | Path, sources: str | Path | None = None
    ) -> None:
        self.root = Path(source_dir)
        self.sources = Path(sources or self.root / OWN_SOURCES)

    def is_prepared(self) -> bool:
        """Tell whether all subsets are there."""
        subsets = [subset for subsets in self.splits.values() for subset in subsets]
        return all((self.root / subset).is_dir() for subset in subsets)

    def prepare(self) -> None:
        """Download what is missing, 4 GB in all, and write the subsets.

        Raises:
            FileNotFoundError: A corpus lacks something that is selected.
            ModuleNotFoundError: The download library is missing.
        """
        lines = SELECTION.read_text(encoding="utf-8").splitlines()
        readers = {
            r"[ab]\d{4}": _read_kathleen(self._find(KATHLEEN)),
            r"LJ\d{3}": _read_ljspeech(self._find(LJSPEECH)),
            r"SPEAKER": _read_speechocean(self._find(SPEECHOCEAN)),
            r"\d+-": _read_librispeech(self._find(LIBRISPEECH)),
        }
        partial = self.root / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        for line in tqdm(lines, desc="write chapters"):
            directory, *names = line.split()
            (read,) = (r for start, r in readers.items() if re.match(start, names[0]))
            _write_chapter(
                partial / directory, [u for name in names for u in read(name)]
            )
        for subset in partial.iterdir():
            shutil.rmtree(self.root / subset.name, ignore_errors=True)
            subset.rename(self.root / subset.name)
        partial.rmdir()
        shutil.rmtree(self.root / OWN_SOURCES, ignore_errors=True)

    def _find(self, pattern: str) -> Path:
        """Return the directory of a corpus, downloaded if it is not there."""
        if not any(self.sources.glob(pattern)):
            self.sources.mkdir(parents=True, exist_ok=True)
            url = URLS[pattern]
            archive = self.sources / url.rpartition("/")[2]
            download(url, archive)
            # Out of sight, so that what is there is whole.
            partial = self.sources / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            with tarfile.open(archive) as tar:
                tar.extractall(partial, filter="data")
            # Beside another part of the corpus that is there. What is looked for goes
            # last: it tells that all is there.
            for path in sorted(partial.glob("*/*"), key=lambda p: p.match(pattern)):
                target = self.sources / path.relative_to(partial)
                target.parent.mkdir(exist_ok=True)
                if not target.exists():
                    path.rename(target)
            shutil.rmtree(partial)
            archive.unlink()
        return next(self.sources.glob(pattern))


def _read_kathleen(directory: Path) -> Callable[[str], list[Spoken]]:
    def read(name: str) -> list[Spoken]:
        takes = sorted(directory.glob(f"arctic_{name}*.wav"))
        if not takes:
            raise FileNotFoundError(f"{directory} has no arctic_{name}*.wav")
        return [(takes[0], takes[0].with_suffix(".txt").read_text(encoding="utf-8"))]

    return read


def _read_ljspeech(directory: Path) -> Callable[[str], list[Spoken]]:
    metadata = (directory.parent / "metadata.csv").read_text(encoding="utf-8")
    rows = (line.split("|") for line in metadata.splitlines())
    texts = {name: normalized for name, _, normalized in rows}

    return lambda name: [(directory / f"{name}.wav", texts[name])]


def _read_speechocean(directory: Path) -> Callable[[str], list[Spoken]]:
    texts = dict(
        line.split(maxsplit=1)
        for subset in ("train", "test")
        for line in _lines(directory.parent / subset / "text")
    )

    def read(name: str) -> list[Spoken]:
        # Beside those that have a text, there are a few that have none.
        files = sorted(f for f in (directory / name).iterdir() if f.stem in texts)
        return [(file, texts[file.stem]) for file in files]

    return read


def _read_librispeech(directory: Path) -> Callable[[str], list[Spoken]]:
    def read(name: str) -> list[Spoken]:
        chapter = directory.joinpath(*name.split("-"))
        lines = _lines(chapter / f"{name}.trans.txt")[:10]
        utterances = (line.split(maxsplit=1) for line in lines)
        return [(chapter / f"{utt_id}.flac", text) for utt_id, text in utterances]

    return read


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def _write_chapter(directory: Path, utterances: list[Spoken]) -> None:
    chapter = f"{directory.parent.name}-{directory.name}"
    directory.mkdir(parents=True)
    lines = []
    for number, (audio, text) in enumerate(utterances):
        utt_id = f"{chapter}-{number:04}"
        _write_audio(audio, directory / f"{utt_id}.flac")
        words = re.findall(r"[A-Z]+(?:'[A-Z]+)*", text.upper().replace("’", "'"))
        lines.append(f"{utt_id} {' '.join(words)}\n")
    transcripts = directory / f"{chapter}.trans.txt"
    transcripts.write_text("".join(lines), encoding="utf-8")


def _write_audio(audio: Path, target: Path) -> None:
    if audio.suffix == target.suffix:
        shutil.copyfile(audio, target)
        return
    samples, rate = soundfile.read(audio, always_2d=True)
    mono = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)
    pcm = np.round(mono * 2**15).clip(-(2**15), 2**15 - 1).astype(np.int16)
    soundfile.write(target, pcm, SAMPLE_RATE)
