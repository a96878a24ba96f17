"""Count of the elements that a computation allocates, without running a clock."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Allocated:
    """Elements of the largest tensor, and of all tensors together."""

    largest: int = 0
    total: int = 0


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.allocated = Allocated()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        known = {storage_of(x) for x in tree_leaves((args, kwargs)) if is_tensor(x)}
        for x in filter(is_tensor, tree_leaves(output)):
            if storage_of(x) not in known:
                elements = x.untyped_storage().nbytes() // x.element_size()
                self.allocated.largest = max(self.allocated.largest, elements)
                self.allocated.total += elements
        return output


def is_tensor(x) -> bool:
    return isinstance(x, torch.Tensor)


def storage_of(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def allocated(function: Callable[[], None]) -> Allocated:
    """Run `function` on the CPU and count what it allocates, backward included."""
    with _Recorder() as recorder:
        function()
    return recorder.allocated
