"""ESPnet's whole models, and batches of noise for them."""

import argparse
import copy
import logging
from collections.abc import Sequence

import torch
from espnet2.tasks.asr import ASRTask

SAMPLE_RATE = 16000


def build_model(args: argparse.Namespace, tokens: Sequence[str]) -> torch.nn.Module:
    """Build ESPnet's model.

    Args:
        args: Options of ESPnet2's training.
        tokens: Names of the model's outputs.
    """
    args = copy.deepcopy(args)
    args.token_list = list(tokens)
    if args.normalize == "global_mvn":
        # Its statistics may not be there yet; it has no parameters.
        args.normalize = None
    # It tells about every model that CTC needs no decoder.
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    try:
        return ASRTask.build_model(args)
    finally:
        logging.getLogger().setLevel(level)


def build_batch(
    utterances: int, seconds: float, tokens: int, vocabulary: int
) -> tuple[torch.Tensor, ...]:
    """Return speech (B, N) and text (B, L) without padding, and their lengths (B,).

    Args:
        utterances: Number B of utterances.
        seconds: Length of each.
        tokens: Tokens L of each.
        vocabulary: Outputs of the model.
    """
    samples = round(SAMPLE_RATE * seconds)
    # The first token is CTC's blank, and the last one ends a sentence.
    text = torch.randint(1, vocabulary - 1, (utterances, tokens))
    return (
        0.1 * torch.randn(utterances, samples),
        torch.full((utterances,), samples),
        text,
        torch.full((utterances,), tokens),
    )
