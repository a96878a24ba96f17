"""How torch may run a layer: traced, transformed, under autocast, with hooks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.module import _has_any_global_hook


def is_exporting() -> bool:
    """Return whether one graph is made that has to serve any length."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def is_compiling() -> bool:
    """Return whether a compiler makes a graph to run here, and not one to export."""
    return torch.compiler.is_compiling() and not is_exporting()


def is_traced() -> bool:
    """Return whether torch takes a layer's operations apart instead of running them.

    Compilers, exporters and the transforms of ``torch.func`` do: they get forms made of
    torch's own operations, without gradients written by hand.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
    )


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context without autocast, on devices that have none too, as meta."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def in_autocast_dtype(*tensors: torch.Tensor | None) -> Iterator[torch.Tensor | None]:
    """Convert tensors as autocast does before a convolution."""
    for tensor in tensors:
        if tensor is not None and torch.is_autocast_enabled(tensor.device.type):
            # Autocast leaves float64 as it is.
            if tensor.dtype is not torch.float64:
                tensor = tensor.to(torch.get_autocast_dtype(tensor.device.type))
        yield tensor


def gradient(backward: Callable) -> Callable:
    """Mark the backward of an autograd function, and keep autocast out of it.

    Where ``backward()`` is called inside of autocast, products would be rounded there
    that are not in the forward pass, and what is too large for float16 would be lost.
    """

    @once_differentiable
    @wraps(backward)
    def in_full_precision(ctx, grad):
        with without_autocast(grad.device):
            return backward(ctx, grad)

    return in_full_precision


def has_hooks(module: torch.nn.Module) -> bool:
    """Return whether calling a module does more than its class says."""
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or "forward" in vars(module)
        or _has_any_global_hook()
    )
