"""What a checkpoint leaves out of an encoder, and what it has too much."""

import logging
from collections.abc import Iterable, Mapping

import torch

_NAMED = 5


def report_mismatch(
    module: torch.nn.Module, state_dict: Mapping[str, torch.Tensor], prefix: str, *_
) -> None:
    """Warn of parameters that a checkpoint has under other names, or not at all.

    ESPnet loads trained models with ``strict=False``, and for ``--init_param`` fills
    up the checkpoint with the model's own parameters: neither says what is missing.

    Args:
        module: Module that is being loaded, which this is a pre-hook of.
        state_dict: What is loaded.
        prefix: What the module's names begin with there.
    """
    own = module.state_dict()
    missing = [
        name
        for name, value in own.items()
        if prefix + name not in state_dict
        or _is_same_tensor(state_dict[prefix + name], value)
    ]
    if missing:
        logging.warning(
            "%d of the %d parameters of %s are not in the checkpoint and stay as they "
            "are: %s",
            *(len(missing), len(own), type(module).__name__, _first(missing)),
        )
    unknown = [
        name
        for name in state_dict
        if name.startswith(prefix) and name.removeprefix(prefix) not in own
    ]
    if unknown:
        logging.warning(
            "%d parameters of the checkpoint are not in %s and have no effect: %s",
            *(len(unknown), type(module).__name__, _first(unknown)),
        )


def _is_same_tensor(loaded: torch.Tensor, own: torch.Tensor) -> bool:
    return (
        isinstance(loaded, torch.Tensor)
        and not own.is_meta
        and own.numel() > 0
        and loaded.data_ptr() == own.data_ptr()
    )


def _first(names: Iterable[str]) -> str:
    names = list(names)
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join(names[:_NAMED] + more)
