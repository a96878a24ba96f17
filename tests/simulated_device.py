"""A device for machines without a GPU: what is written for CUDA runs on it, and counts.

Its tensors are plain tensors of torch whose memory is that of the CPU, which computes
their numbers. They differ from the CPU's as CUDA's do: an operation refuses tensors of
two devices, numpy refuses them, and autocast follows CUDA's lists. An operation for
which CUDA has one kernel is one here, all others torch takes apart as it does on CUDA.

Importing this module registers the device ``simulated``. It takes random numbers from
the CPU's generator, and autocast casts a weight again for each use.
"""

import ctypes
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)
from torch.utils.flop_counter import flop_registry

NAME = "simulated"

aten = torch.ops.aten
# What torch's DLPack calls the devices.
_CPU, _EXTENSION = 1, 12
# Operations that make memory without writing to it, or hand out what is there.
_NO_KERNELS = {"empty", "empty_strided", "_local_scalar_dense", "set_", "resize_"}
# Operations whose result's size or value the host has to know.
_WAITING = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}
# Operations that CUDA allows an index from the CPU.
_INDEXING = {"index", "index_put_", "_index_put_impl_"}
# Operations that change a tensor in place and do not read it.
_WRITING = {"bernoulli_", "copy_", "fill_", "normal_", "random_", "uniform_", "zero_"}
# What autocast on CUDA runs in its dtype, and in the widest dtype of the inputs; all
# else that it has to do with runs in float32.
_LOWER_PRECISION = set(
    "_convolution _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm addmv addr "
    "baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d conv_transpose3d convolution einsum gru_cell linalg_multi_dot "
    "linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell "
    "scaled_dot_product_attention".split()
)
_WIDEST_TYPE = set(
    "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add "
    "tensordot vdot".split()
)
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


@dataclass
class Counts:
    """What operations on the device cost.

    Attributes:
        kernels: Operations by name, but for views, allocations and transfers.
        bytes_read: Bytes that they read: each tensor once, and all of it.
        bytes_written: The same of what they write.
        flops: Floating-point operations of products and convolutions.
        waits: Waits of the host by operation: for a number, for a size that depends on
            numbers, for a copy to the CPU. Copies to the device are none.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    bytes_written: int = 0
    flops: int = 0
    waits: Counter[str] = field(default_factory=Counter)


_counting: list[Counts] = []


@contextmanager
def count() -> Iterator[Counts]:
    """Count what runs on the device, in the threads of the backward pass too."""
    counts = Counts()
    _counting.append(counts)
    try:
        yield counts
    finally:
        _counting.remove(counts)


@contextmanager
def available() -> Iterator[torch.device]:
    """Let torch use the device, and make and load its storages.

    For these torch has no allocator. Outside of this context nothing of it is changed.
    What differs from CUDA: ``module.to(device)`` gives the module other parameters, so
    an optimiser is made after it.
    """
    new_storage = torch.UntypedStorage.__new__

    def new(cls, *args, device=None, **kwargs):
        if device is None or torch.device(device).type != NAME:
            device = {} if device is None else {"device": device}
            return new_storage(cls, *args, **device, **kwargs)
        size = args[0] if args else kwargs.get("size", 0)
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    torch.UntypedStorage.__new__ = new
    _Backend.is_used = True
    try:
        yield torch.device(NAME)
    finally:
        del torch.UntypedStorage.__new__
        _Backend.is_used = False


class _Backend(_DummyBackendModule):
    """What becomes ``torch.simulated``."""

    _initialized = True
    is_used = False

    def is_available(self) -> bool:
        return self.is_used  # So that nothing else chooses the device by itself.

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def device(self, device: torch.device | int) -> nullcontext:
        return nullcontext()

    def get_rng_state(self, device: torch.device | int = 0) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(
        self, state: torch.Tensor, device: torch.device | int = 0
    ) -> None:
        torch.set_rng_state(state)


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _moved(x: torch.Tensor, device: int) -> torch.Tensor:
    """Return a tensor of the same memory and layout that says it is on that device."""
    capsule = torch._C._to_dlpack(x)
    # A DLManagedTensor begins with the address of the data, then the type of device.
    address = _pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
    ctypes.c_int32.from_address(address).value = device
    return torch._C._from_dlpack(capsule)


def _is_here(x: object) -> bool:
    return isinstance(x, torch.Tensor) and not x.is_cpu


def _on_cpu(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_cpu else _moved(x, _CPU)


def _map(function: Callable, value: object) -> object:
    """Apply a function to a tensor, or to those in a list."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(function, x) for x in value)
    return value


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif _is_here(value):
            yield value


def _run(op: torch._ops.OpOverload, *args, **kwargs) -> object:
    """Compute an operation on the CPU; in place, its result is the tensor given."""
    own = []

    def enter(x: torch.Tensor) -> torch.Tensor:
        if x.is_cpu:
            if x.dim() > 0 and not (own and _name(op) in _INDEXING):
                raise RuntimeError(
                    f"{op}: expected all tensors to be on the same device, but found "
                    f"those of {NAME} and of the CPU"
                )
            return x
        # Where an operation makes room for its result, there is nothing yet.
        inside = _moved(x, _CPU) if x.numel() else torch.empty_like(x, device="cpu")
        own.append((x, inside))
        return inside

    def leave(x: torch.Tensor) -> torch.Tensor:
        for outside, inside in own:
            if x is inside:
                return outside
        return _moved(x, _EXTENSION)

    inside_args = _map(enter, args)
    inside_kwargs = {key: _map(enter, value) for key, value in kwargs.items()}
    if kwargs.get("device") is not None:
        inside_kwargs["device"] = torch.device("cpu")
    result = op(*inside_args, **inside_kwargs)
    for x, inside in own:
        if x.shape != inside.shape:
            x.set_(_moved(inside, _EXTENSION))
    result = _map(leave, result)
    if _counting:
        _record(op, args, kwargs, result)
    return result


def _name(op: torch._ops.OpOverload) -> str:
    return op._schema.name.split("::")[1]


def _record(
    op: torch._ops.OpOverload, args: tuple, kwargs: dict, result: object
) -> None:
    name = _name(op)
    if name in _WAITING or (name in _INDEXING and _has_mask(args[1])):
        _record_wait(name)
    if name in _NO_KERNELS:
        return
    schema = op._schema.arguments
    given = dict(zip((x.name for x in schema), args, strict=False)) | kwargs
    read, written = [], [result]
    for argument in schema:
        value = given.get(argument.name)
        is_changed = argument.alias_info is not None and argument.alias_info.is_write
        if is_changed:
            written.append(value)
        if not (is_changed and (argument.is_out or name in _WRITING)):
            read.append(value)
    flops = _num_flops(op, args, kwargs, result)
    read, written = _num_bytes(read), _num_bytes(written)
    for counts in _counting:
        counts.kernels[name] += 1
        counts.bytes_read += read
        counts.bytes_written += written
        counts.flops += flops


def _num_flops(
    op: torch._ops.OpOverload, args: tuple, kwargs: dict, result: object
) -> int:
    if op.overloadpacket is aten.convolution_backward:
        # Of one gradient. torch's formula counts all groups as one.
        grad, _, weight, *_ = args
        return 2 * grad.numel() * weight[0].numel()
    formula = flop_registry.get(op.overloadpacket)
    return formula(*args, **kwargs, out_val=result) if formula else 0


def _has_mask(indices: list[torch.Tensor | None]) -> bool:
    masks = (torch.bool, torch.uint8)
    return any(x is not None and x.dtype in masks for x in indices)


def _record_wait(name: str) -> None:
    for counts in _counting:
        counts.waits[name] += 1


def _num_bytes(values: list[object]) -> int:
    """Return the memory that tensors of the device cover, each counted once."""
    tensors = {(x.data_ptr(), x.shape, x.stride()): x for x in _tensors(values)}
    return sum(map(_footprint, tensors.values()))


def _footprint(x: torch.Tensor) -> int:
    if x.numel() == 0:
        return 0
    # An expanded tensor and overlapping windows have more entries than memory.
    steps = [s for s in zip(x.shape, x.stride(), strict=True) if s[1] != 0]
    entries = math.prod(size for size, _ in steps)
    extent = 1 + sum((size - 1) * stride for size, stride in steps)
    return min(entries, extent) * x.element_size()


def _empty(size, *, dtype=None, memory_format=None, **_) -> torch.Tensor:
    x = torch.empty(size, dtype=dtype, memory_format=memory_format)
    return _moved(x, _EXTENSION)


def _empty_strided(size, stride, *, dtype=None, **_) -> torch.Tensor:
    return _moved(torch.empty_strided(size, stride, dtype=dtype), _EXTENSION)


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    _on_cpu(target).copy_(_on_cpu(source))
    if _counting and _is_here(source):
        if _is_here(target):
            _record(aten.copy_.default, (target, source), {}, target)
        else:
            _record_wait("copy to the CPU")
    return target


def _convolution(x, weight, bias, *options) -> torch.Tensor:
    """Convolve, and add the bias by a kernel of its own, as around cuDNN."""
    out = _run(aten.convolution.default, x, weight, None, *options)
    if bias is None:
        return out
    return out.add_(bias.view(-1, *(1,) * (out.dim() - 2)))


def _convolution_backward(grad, x, weight, *options) -> list[torch.Tensor | None]:
    """Compute each gradient by a kernel of its own."""
    *options, (with_x, with_weight, with_bias) = options
    grads = [None, None, None]
    for index, is_needed in enumerate((with_x, with_weight)):
        if is_needed:
            mask = [index == 0, index == 1, False]
            args = (grad, x, weight, None, *options, mask)
            grads[index] = _run(aten.convolution_backward.default, *args)[index]
    if with_bias:
        grads[2] = grad.sum((0, *range(2, grad.dim())))
    return grads


def _attention(
    query, key, value, mask=None, dropout_rate=0.0, is_causal=False, **options
) -> torch.Tensor:
    """Attend in one kernel, as CUDA does, which has more cases of it."""
    has_groups = options.pop("enable_gqa", False)
    if dropout_rate > 0.0 or has_groups or query.dim() != 4:
        args = (query, key, value, mask, dropout_rate, is_causal)
        return aten._scaled_dot_product_attention_math(*args, **options)[0]
    if mask is not None and mask.dtype == torch.bool:
        mask = query.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, is_causal=is_causal, attn_mask=mask, **options
    )[0]


def _lstm_cell(
    x, hidden, cell, x_bias=None, hidden_bias=None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute what CUDA has an operation for, without gradients."""
    biases = [bias for bias in (x_bias, hidden_bias) if bias is not None]
    gates = sum(biases, x + hidden)
    opened, kept, new, shown = gates.chunk(4, dim=1)
    cell = kept.sigmoid() * cell + opened.sigmoid() * new.tanh()
    return shown.sigmoid() * cell.tanh(), cell, gates


def _overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _autocast(op: torch._ops.OpOverload, *args, **kwargs) -> object:
    """Run an operation in the dtype that autocast has for it on CUDA."""

    def is_eligible(x: torch.Tensor) -> bool:
        return x.is_floating_point() and x.dtype != torch.float64

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if _is_here(x) and is_eligible(x) else x

    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        if any(x.name == "dtype" for x in op._schema.arguments):
            # Its sum is in float32, and its input stays as it is.
            if is_eligible(args[0]) and not _has_dtype(args, kwargs):
                kwargs["dtype"] = torch.float32
            return op(*args, **kwargs)
        dtype = torch.float32
        if _name(op) in _LOWER_PRECISION:
            dtype = torch.get_autocast_dtype(NAME)
        elif _name(op) in _WIDEST_TYPE:
            types = [x.dtype for x in _tensors((args, *kwargs.values()))]
            dtype = functools.reduce(torch.promote_types, types)
        kwargs = {key: _map(cast, value) for key, value in kwargs.items()}
        return op(*_map(cast, args), **kwargs)


def _has_dtype(args: tuple, kwargs: dict) -> bool:
    given = (*args, kwargs.get("dtype"))
    return any(isinstance(x, torch.dtype) for x in given)


_library = torch.library.Library("aten", "IMPL")
_fallbacks = torch.library.Library("_", "IMPL")


def _register() -> None:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    special = {
        "aten::empty.memory_format": _empty,
        "aten::empty_strided": _empty_strided,
        "aten::_copy_from": _copy_from,
        "aten::convolution_overrideable": _convolution,
        "aten::convolution_backward_overrideable": _convolution_backward,
        "aten::_thnn_fused_lstm_cell": _lstm_cell,
    }
    # Operations that CUDA does not take apart: nor does the CPU, but for these.
    names = set(torch._C._dispatch_get_all_op_names())
    own = {x for x in names if x.startswith("aten::_foreach_")}
    own.update(_names_with_kernel("CPU"))
    # With a number they become those with a tensor, which is a number again in Python.
    own |= {x.removesuffix("Tensor") + "Scalar" for x in own if x.endswith(".Tensor")}
    for name in own & names:
        special.setdefault(name, _kernel(_overload(name)))
    for name, function in special.items():
        _library.impl(name, function, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        _library.impl("scaled_dot_product_attention", _attention, key)
    _fallbacks.fallback(_run, "PrivateUse1")
    for name in _names_with_kernel("AutocastCUDA"):
        _library.impl(
            name, functools.partial(_autocast, _overload(name)), "AutocastPrivateUse1"
        )
    _fallbacks.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


def _names_with_kernel(key: str) -> Iterator[str]:
    for name in torch._C._dispatch_get_all_op_names():
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        if name.startswith("aten::") and has_kernel:
            yield name


def _kernel(op: torch._ops.OpOverload) -> Callable:
    aliases = [x.alias_info for x in op._schema.returns]
    is_view = bool(aliases) and aliases[0] is not None and not aliases[0].is_write
    if is_view or _name(op) in ("set_", "resize_"):
        # The CPU's own ones hand out the same memory, whatever its device.
        return functools.partial(
            op.redispatch, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        )
    return functools.partial(_run, op)


_register()
