"""Mini LibriSpeech: five hours of LibriSpeech to train on, from OpenSLR.

ESPnet3 has no recipe for it.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from pathlib import Path

from tqdm import tqdm
from typeguard import typechecked

from .download import download

# As published in https://www.openslr.org/resources/31/md5sum.txt
MD5 = {
    "train-clean-5.tar.gz": "5df7d4e78065366204ca6845bb08f490",
    "dev-clean-2.tar.gz": "6d7ab67ac6a1d2c993d050e16d61080d",
}
# Which of its speakers, in order of their numbers, an archive gives to which subset.
SUBSETS = {
    "train-clean-5": {"train-clean-5": slice(None)},
    "dev-clean-2": {
        "dev-clean-2-valid": slice(0, None, 2),
        "dev-clean-2-test": slice(1, None, 2),
    },
}


class MiniLibriSpeech:
    """The corpus of https://www.openslr.org/31.

    It has no test set, so every second speaker of ``dev-clean-2`` is set apart for
    one: no test utterance has had a part in choosing the model. The error rates are
    therefore not those of the whole ``dev-clean-2``.

    Args:
        source_dir: Root of the corpus.
        base_url: Directory of the archives, OpenSLR's or a mirror's.
    """

    splits = {
        "train": ["train-clean-5"],
        "valid": ["dev-clean-2-valid"],
        "test": ["dev-clean-2-test"],
    }

    @typechecked
    def __init__(
        self,
        source_dir: str | Path,
        base_url: str = "https://www.openslr.org/resources/31",
    ) -> None:
        self.root = Path(source_dir)
        self.base_url = base_url.rstrip("/")

    def is_prepared(self) -> bool:
        """Tell whether all subsets are there."""
        return all(map(self._has, SUBSETS))

    def prepare(self) -> None:
        """Download and unpack what is missing, 460 MB in all.

        An interrupted download goes on where it stopped. The archives are removed.

        Raises:
            OSError: An archive is not the one that OpenSLR publishes.
            ModuleNotFoundError: The download library is missing.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        for name in SUBSETS:
            if not self._has(name):
                archive = self._download(f"{name}.tar.gz")
                self._unpack(archive, name)
                archive.unlink()

    def _has(self, name: str) -> bool:
        return all((self.root / subset).is_dir() for subset in SUBSETS[name])

    def _download(self, file_name: str) -> Path:
        url, path = f"{self.base_url}/{file_name}", self.root / file_name
        download(url, path)
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, "md5").hexdigest()
        if md5 != MD5[file_name]:
            path.unlink()
            raise OSError(
                f"{url} has MD5 {md5}, should have {MD5[file_name]}. The file was "
                "removed: run again, or set base_url to a mirror of OpenSLR."
            )
        return path

    def _unpack(self, archive: Path, name: str) -> None:
        """Unpack and divide the speakers out of sight, so that a subset is whole."""
        partial = self.root / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        size = archive.stat().st_size
        with (
            archive.open("rb") as file,
            tqdm.wrapattr(file, "read", total=size, desc=f"unpack {name}") as stream,
            tarfile.open(fileobj=stream) as tar,
        ):
            tar.extractall(partial, filter="data")
        unpacked = partial / "LibriSpeech"
        speakers = sorted((unpacked / name).iterdir(), key=lambda path: int(path.name))
        for subset, chosen in SUBSETS[name].items():
            (partial / subset).mkdir()
            for speaker in speakers[chosen]:
                speaker.rename(partial / subset / speaker.name)
        for subset in SUBSETS[name]:
            shutil.rmtree(self.root / subset, ignore_errors=True)
            (partial / subset).rename(self.root / subset)
        for document in unpacked.glob("*.TXT"):
            document.replace(self.root / document.name)
        shutil.rmtree(partial)
