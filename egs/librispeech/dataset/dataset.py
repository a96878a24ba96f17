"""The dataset that ESPnet3 trains and tests on.

That of ESPnet3's own recipe has no names of utterances to decode by.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from espnet3.components.data.base_dataset import BaseDataset
from espnet3.components.data.dataset_module import instantiate_dataset_reference
from espnet3.contract import Field

from .builder import LibriSpeechBuilder, open_manifest


class LibriSpeechDataset(BaseDataset):
    """One subset of a corpus in LibriSpeech's layout.

    An item is a dict of ``speech``, a float32 array ``(num_samples,)`` in [-1, 1] at
    16 kHz, and ``text``, upper-case words in LibriSpeech. A subset that
    ``create_dataset`` has not prepared is prepared here.

    Args:
        split: Name of the subset's directory, such as ``train-clean-100``.
        source_dir: Root of the corpus.
        data_dir: Where ``create_dataset`` keeps what it prepared.
        with_utt_id: Also return ``utt_id``, the utterance's name in the corpus.
            Decoding writes its output by this name; training cannot batch it.

    Raises:
        FileNotFoundError: There is no such corpus.
        CorpusError: The subset is missing or something is wrong in it.
    """

    fields = (Field("speech", "audio"), Field("text", "text"))

    def __init__(
        self,
        split: str,
        source_dir: str | Path,
        data_dir: str | Path,
        with_utt_id: bool = False,
    ) -> None:
        self._args = {
            "split": split,
            "source_dir": source_dir,
            "data_dir": data_dir,
            "with_utt_id": with_utt_id,
        }
        self.with_utt_id = with_utt_id
        if with_utt_id:
            self.fields = (Field("utt_id", "text"), *self.fields)
        manifest = open_manifest(split, source_dir, data_dir)
        self.utterances = manifest.read()
        if not self.utterances:
            LibriSpeechBuilder().build(
                source_dir=source_dir, data_dir=data_dir, splits=[split]
            )
            self.utterances = manifest.read()

    def __len__(self) -> int:
        return len(self.utterances)

    def __getitem__(self, index: int) -> dict[str, np.ndarray | str]:
        utterance = self.utterances[int(index)]
        try:
            speech, _ = soundfile.read(utterance.audio, dtype="float32")
        except soundfile.SoundFileError as error:
            raise OSError(f"Cannot read {utterance.audio}: {error}") from error
        item = {"speech": speech, "text": utterance.text}
        return {"utt_id": utterance.utt_id, **item} if self.with_utt_id else item

    def __reduce__(self):
        # ESPnet3 imports this file under a name that it makes up from the path, which
        # a spawned worker cannot import: have the worker load it as ESPnet3 does.
        recipe_dir = Path(__file__).parents[1]
        return instantiate_dataset_reference, (
            {"data_src_args": self._args},
            recipe_dir,
        )
