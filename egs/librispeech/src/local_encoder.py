"""An encoder without a global mixer, to compare the others with."""

from __future__ import annotations

import torch
from espnet2.tasks import asr
from espnet3.systems.esp2_asr import task

from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder

NAME = "local"


class NoMixer(torch.nn.Module):
    """Stands where a block has its attention, and leaves every frame as it is."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the queries (B, T, D)."""
        return query


class LocalEncoder(LinearTimeEncoder):
    """ESPnet's blocks with nothing in them that sees more than some frames.

    ESPnet's E-Branchformer always has a global branch. A Branchformer may leave it out,
    but lacks the merging convolution and the feed-forward layers, so that it would tell
    blocks apart rather than mixers. A global branch of zeros would leave half of the
    parameters that merge the branches without input. So the global branch hands on its
    normalised input: all but the mixing over time stays what it is in the other rows.

    Args:
        input_size: Number of features F.
        **encoder_conf: Options of
            :class:`~espnet_fastformer.encoder.linear_time_encoder.LinearTimeEncoder`.
    """

    def __init__(self, input_size: int, **encoder_conf):
        def mixer(
            size: int, attention_heads: int, dropout_rate: float
        ) -> torch.nn.Module:
            return NoMixer()

        super().__init__(mixer, input_size, **encoder_conf)


def register() -> None:
    """Make ``local`` known to ESPnet2's ASR task, which decodes, and to ESPnet3's."""
    for choices in (asr.encoder_choices, task.encoder_choices):
        choices.classes[NAME] = LocalEncoder
