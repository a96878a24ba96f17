"""Cases of known cost, importable without anything slow by the measured processes."""

import torch

from benchmarks.measure import Case

SIZE = 32


class Square(torch.nn.Module):
    """A matrix product of known cost that also holds some memory."""

    def __init__(self, held: int = 0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(SIZE, SIZE))
        self.held = held

    def forward(self, x):
        torch.ones(self.held)
        return x @ self.weight


class ByLength(Square):
    """Fails from 100 frames on."""

    def forward(self, x):
        if x.size(1) >= 100:
            raise RuntimeError("too | long\nsecond line")
        return super().forward(x)


def inputs(batch: int, frames: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, frames, SIZE),)


def case(module, frames: int = 40, **options) -> Case:
    name = getattr(module, "__name__", "partial")
    return Case(name, module, inputs, 2, frames, frames / 10, **options)


def depthwise() -> torch.nn.Module:
    return torch.nn.Conv1d(SIZE, SIZE, 5, padding=2, groups=SIZE)


def channels_first(batch: int, frames: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, SIZE, frames),)
