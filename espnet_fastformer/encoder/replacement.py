"""Layers of derived classes in the place of those that ESPnet's classes are made of."""

from collections.abc import Iterable

import torch


class Replacement:
    """A layer that computes what another does, with the same parameters.

    Attributes:
        replaces: Class of the other.
    """

    replaces: type[torch.nn.Module]

    @classmethod
    def fits(cls, layer: torch.nn.Module) -> bool:
        """Return whether it computes what that layer does."""
        return type(layer) is cls.replaces


def replace_layers(
    module: torch.nn.Module, replacements: Iterable[type[Replacement]]
) -> torch.nn.Module:
    """Let the layers of a module compute as what fits them does.

    Only their class changes, as under torch's own parametrizations: parameters, names
    and hooks stay.
    """
    for layer in module.modules():
        for replacement in replacements:
            if replacement.fits(layer):
                layer.__class__ = replacement
    return module
