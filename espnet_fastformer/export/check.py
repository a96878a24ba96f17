"""Whether an exported file computes what the model does."""

import math
from typing import NamedTuple

import numpy as np
import torch
from espnet2.asr.frontend.abs_frontend import AbsFrontend

from espnet_fastformer.export.runtime import Runtime
from espnet_fastformer.inference.features import extract_features

# Seconds of the utterances of each batch: alone and padded, none as long as the trace.
_BATCHES = ((0.7,), (11.3,), (6.1, 2.9, 0.7))


class Difference(NamedTuple):
    """How far a file is from the model, over frames that are no padding.

    Attributes:
        posterior: Largest difference of a token's probability.
        tokens: Share of frames with another most probable token.
    """

    posterior: float
    tokens: float


@torch.no_grad()
def compare(
    module: torch.nn.Module, exported: Runtime, frontend: AbsFrontend, fs: int
) -> Difference:
    """Compare on the features of noise, at several lengths and with padding.

    Args:
        module: What was exported.
        exported: The file, opened.
        frontend: ESPnet's frontend of the model.
        fs: Its sampling rate in Hz.

    Raises:
        ValueError: If the lengths differ, or a probability is infinite or no number.
    """
    random = np.random.default_rng(0)
    posterior, others, frames = 0.0, 0, 0
    for batch in _BATCHES:
        speech = [random.standard_normal(round(s * fs)) * 0.1 for s in batch]
        feats = [
            extract_features(frontend, torch.tensor(samples, dtype=torch.float32))[0]
            for samples in speech
        ]
        lengths = torch.tensor([len(x) for x in feats])
        padded = torch.nn.utils.rnn.pad_sequence(feats, batch_first=True)
        expected, olens = module(padded, lengths)
        actual, actual_olens = exported(padded, lengths)
        if not torch.equal(olens, actual_olens):
            raise ValueError(
                f"lengths {lengths.tolist()} become {actual_olens.tolist()} in the "
                f"file, but {olens.tolist()} in the model"
            )
        for row, olen in enumerate(olens):
            ours, theirs = expected[row, :olen], actual[row, :olen]
            difference = (ours.exp() - theirs.exp()).abs().max().item()
            if not math.isfinite(difference):
                raise ValueError(
                    f"for lengths {lengths.tolist()} probabilities of the file, or of "
                    "the model, are infinite or no number"
                )
            posterior = max(posterior, difference)
            others += (ours.argmax(-1) != theirs.argmax(-1)).sum().item()
            frames += int(olen)
    return Difference(posterior, others / frames)
