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


class Piecewise(Square):
    """Looks at its input a piece at a time, each by a module."""

    def __init__(self):
        super().__init__()
        self.part = torch.nn.Identity()

    def forward(self, x):
        pieces = [self.part(piece) @ self.weight for piece in x.split(20, 1)]
        return torch.cat(pieces, 1)


def compile_square() -> torch.nn.Module:
    """Compiling takes 100 MB, and so for each length."""
    return torch.compile(Square(), dynamic=False, backend=_backend)


def _backend(module: torch.fx.GraphModule, _inputs) -> torch.fx.GraphModule:
    torch.ones(25_000_000)
    return module


def inputs(batch: int, frames: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, frames, SIZE),)


def case(module, frames: int = 40, **options) -> Case:
    name = getattr(module, "__name__", "partial")
    return Case(name, module, inputs, 2, frames, frames / 10, **options)


def learned_inputs(batch: int, frames: int) -> tuple[torch.Tensor]:
    """As if a layer came before."""
    return (torch.randn(batch, frames, SIZE, requires_grad=True),)


def depthwise() -> torch.nn.Module:
    return torch.nn.Conv1d(SIZE, SIZE, 5, padding=2, groups=SIZE)


def channels_first(batch: int, frames: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, SIZE, frames),)
