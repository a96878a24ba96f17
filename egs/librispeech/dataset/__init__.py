"""Any corpus in LibriSpeech's layout, for ESPnet3."""

from .builder import CORPORA
from .builder import LibriSpeechBuilder as DatasetBuilder
from .dataset import LibriSpeechDataset as Dataset

__all__ = ["CORPORA", "Dataset", "DatasetBuilder"]
