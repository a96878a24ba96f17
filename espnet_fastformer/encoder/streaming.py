"""What an encoder adds for streams: chunk sizes in training, and the state of streams.

A stream is the encoder in chunks, see :mod:`espnet_fastformer.layers.chunks`, with a
state from call to call.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from espnet_fastformer.options import check_rates, check_sizes


class StreamingState(NamedTuple):
    """What an encoder remembers of B streams; its size does not grow.

    Attributes:
        features: Features that are not encoded yet, or needed again, (B, n, F).
        embed: State of the input layer: the position, if it encodes positions.
        blocks: State of the blocks, each (B, ...).
        block_size: Chunk size of the streams.
        num_left_chunks: Chunks that a frame sees before its own; None for all.
    """

    features: torch.Tensor
    embed: list[torch.Tensor]
    blocks: list[torch.Tensor]
    block_size: int
    num_left_chunks: int | None

    def check(self, features: torch.Tensor) -> None:
        """Raise ValueError if the next features (B, T, F) cannot follow on these."""
        if features.shape[::2] != self.features.shape[::2]:
            raise ValueError(
                "the state of the stream belongs to another model or batch: it has "
                f"features {tuple(self.features.shape)}, the input "
                f"{tuple(features.shape)}"
            )

    @classmethod
    def batch(cls, states: Sequence["StreamingState"]) -> "StreamingState":
        """Put streams into one batch; each may be at another position.

        Raises:
            ValueError: If they cut time in other ways, or do not wait for equally many
                features.
        """
        cuts = {(x.block_size, x.num_left_chunks, x.features.size(1)) for x in states}
        if len(cuts) > 1:
            raise ValueError(
                "streams of a batch need one block_size and num_left_chunks, and "
                "features of equal length that are not encoded yet"
            )
        features, embed, blocks, *_ = zip(*states, strict=True)
        return cls(
            torch.cat(features),
            [torch.cat(parts) for parts in zip(*embed, strict=True)],
            [torch.cat(parts) for parts in zip(*blocks, strict=True)],
            *states[0][3:],
        )

    def split(self) -> list["StreamingState"]:
        """Return the state of each stream of a batch."""
        return [
            self._replace(
                features=self.features[i : i + 1],
                embed=[x[i : i + 1] for x in self.embed],
                blocks=[x[i : i + 1] for x in self.blocks],
            )
            for i in range(len(self.features))
        ]


class ChunkSizes(torch.nn.Module):
    """Draws the chunk size of each batch of a training, or none.

    The sizes follow from the seed of the run and the number of batches before, which
    checkpoints hold: they are the same in all its processes, and after a restart.

    Args:
        short_chunk_threshold: Probability of a chunk size; else the utterance is whole.
        short_chunk_size: Greatest chunk size; the least is an eighth of it.
    """

    def __init__(self, short_chunk_threshold: float, short_chunk_size: int):
        super().__init__()
        check_rates(short_chunk_threshold=short_chunk_threshold)
        check_sizes(short_chunk_size=short_chunk_size)
        self.threshold = short_chunk_threshold
        self.greatest = short_chunk_size
        self.least = max(1, short_chunk_size // 8)
        # Processes seed their generators differently later on.
        self.seed = torch.initial_seed()
        # A tensor, as the copies of a module on several GPUs share those alone.
        self.batches = torch.zeros((), dtype=torch.int64)

    def draw(self) -> int | None:
        """Return the next chunk size in frames after subsampling; None for whole."""
        generator = torch.Generator()
        generator.manual_seed((self.seed + int(self.batches)) % 2**63)
        self.batches += 1
        if torch.rand((), generator=generator) >= self.threshold:
            return None
        size = torch.randint(self.least, self.greatest + 1, (), generator=generator)
        return int(size)

    def get_extra_state(self) -> torch.Tensor:
        """Return what checkpoints hold."""
        return self.batches.clone()

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Take over what a checkpoint holds."""
        self.batches.copy_(state)
