"""Any corpus in LibriSpeech's layout, for ESPnet3.

ESPnet3's own recipe takes the subsets of LibriSpeech alone, and checks no audio.
"""

from .builder import CORPORA
from .builder import LibriSpeechBuilder as DatasetBuilder
from .dataset import LibriSpeechDataset as Dataset

__all__ = ["CORPORA", "Dataset", "DatasetBuilder"]
