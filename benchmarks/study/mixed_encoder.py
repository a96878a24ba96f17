"""An encoder whose blocks need not all have the same global mixer, or any."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from espnet2.tasks import asr
from espnet3.systems.esp2_asr import task
from typeguard import typechecked

from espnet_fastformer.encoder.aft_encoder import AFTEncoder
from espnet_fastformer.encoder.fastformer_encoder import FastformerEncoder
from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder


class NoMixer(torch.nn.Module):
    """Stands where a block has its attention, and leaves every frame as it is.

    ESPnet's E-Branchformer always has a global branch. A Branchformer may leave it out,
    but lacks the merging convolution and the feed-forward layers, so that it would tell
    blocks apart rather than mixers. A global branch of zeros would leave half of the
    parameters that merge the branches without input. So the global branch hands on its
    normalised input: all but the mixing over time stays what it is in other blocks.
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the queries (B, T, D)."""
        return query


def build_no_mixer(
    size: int, attention_heads: int, dropout_rate: float
) -> torch.nn.Module:
    """Build what stands in place of a mixer."""
    return NoMixer()


# Encoders that blocks come from, by what `mixers` calls them.
ENCODERS = {
    "aft": AFTEncoder,
    "fastformer": FastformerEncoder,
    "none": partial(LinearTimeEncoder, build_no_mixer),
}


class MixedEncoder(AFTEncoder):
    """AFT's encoder with blocks of other encoders in it.

    Args:
        input_size: Number of features F.
        mixers: ``aft``, ``fastformer`` or ``none`` for each block, from the first one
            on, and over again if the blocks are more.
        **encoder_conf: Options of
            :class:`~espnet_fastformer.encoder.aft_encoder.AFTEncoder`.

    Raises:
        ValueError: If there is no mixer, or one is unknown.
    """

    @typechecked
    def __init__(self, input_size: int, mixers: Sequence[str], **encoder_conf):
        if not mixers or not set(mixers) <= ENCODERS.keys():
            raise ValueError(
                f"mixers must be a list of {', '.join(ENCODERS)}: {mixers!r}"
            )
        super().__init__(input_size, **encoder_conf)
        shared = {k: v for k, v in encoder_conf.items() if not k.startswith("aft_")}
        blocks = {
            name: build(input_size=input_size, **shared).encoders
            for name, build in ENCODERS.items()
            if name in mixers and name != "aft"
        }
        blocks["aft"] = self.encoders
        for index in range(len(self.encoders)):
            mixer = mixers[index % len(mixers)]
            self.encoders[index] = blocks[mixer][index]


def register() -> None:
    """Make ``mixed`` known to ESPnet2's ASR task, which decodes, and to ESPnet3's."""
    for choices in (asr.encoder_choices, task.encoder_choices):
        choices.classes["mixed"] = MixedEncoder
