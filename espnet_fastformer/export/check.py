"""Whether an exported file computes what the model does."""

from typing import NamedTuple

import numpy as np
import torch
from espnet2.asr.frontend.abs_frontend import AbsFrontend

from espnet_fastformer.export.runtime import Runtime
from espnet_fastformer.export.writers import least_frames
from espnet_fastformer.inference.features import extract_features

# Seconds of the noise that the features are taken from.
_SECONDS = 11.3


class Difference(NamedTuple):
    """How far a file is from the model, over frames that are no padding.

    Attributes:
        largest: Largest difference of a token's probability.
        average: Probability that the file gives to other tokens than the model does, on
            average over the frames.
    """

    largest: float
    average: float


@torch.no_grad()
def compare(
    module: torch.nn.Module, exported: Runtime, frontend: AbsFrontend, fs: int
) -> Difference:
    """Compare on the features of noise, at several lengths and with padding.

    Args:
        module: What the file has to compute, a
            :class:`~espnet_fastformer.export.module.CTCEncoder`.
        exported: The file, opened.
        frontend: ESPnet's frontend of the model.
        fs: Its sampling rate in Hz.

    Raises:
        ValueError: If the lengths differ, or a probability is infinite or no number.
    """
    random = np.random.default_rng(0)
    noise = random.standard_normal(round(_SECONDS * fs)) * 0.1
    feats = extract_features(frontend, torch.tensor(noise, dtype=torch.float32))[0]
    longest, shortest = len(feats), least_frames(module.encoder.embed)
    largest, total, frames = 0.0, 0.0, 0
    # Alone and padded.
    for batch in ([shortest], [longest], [longest // 2, longest // 4, shortest]):
        lengths = torch.tensor(batch)
        padded = torch.nn.utils.rnn.pad_sequence(
            [feats[:length] for length in batch], batch_first=True
        )
        expected, olens = module(padded, lengths)
        actual, actual_olens = exported(padded, lengths)
        if not torch.equal(olens, actual_olens):
            raise ValueError(
                f"lengths {batch} become {actual_olens.tolist()} in the "
                f"file, but {olens.tolist()} in the model"
            )
        for row, olen in enumerate(olens):
            ours, theirs = expected[row, :olen], actual[row, :olen]
            difference = (ours.exp() - theirs.exp()).abs()
            if not difference.isfinite().all():
                raise ValueError(
                    f"for lengths {batch} probabilities of the file, or of the model, "
                    "are infinite or no number"
                )
            largest = max(largest, difference.max().item())
            # What one token gets, another loses.
            total += difference.sum().item() / 2
            frames += int(olen)
    return Difference(largest, total / frames)
