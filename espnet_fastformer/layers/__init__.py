"""Token mixers whose cost is linear in time, called as ESPnet calls attention.

The names below import torch and ESPnet when they are first used.
"""

from importlib import import_module

_LAZY = {
    "AFTConv": "aft",
    "AFTFull": "aft",
    "AFTLocal": "aft",
    "AFTSimple": "aft",
    "FastSelfAttention": "fastformer",
}
__all__ = [*_LAZY]


def __getattr__(name: str) -> type:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
