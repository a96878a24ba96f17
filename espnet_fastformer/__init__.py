"""Linear-time Fastformer and Attention Free Transformer encoders for ESPnet.

Importing the package registers the encoders with ESPnet, as `register` does. It
imports neither torch nor ESPnet: both wait until a name below needs them.
"""

from importlib import import_module

from espnet_fastformer.registration import ENCODERS, register

__version__ = "0.1.0"
__all__ = ["AFTEncoder", "FastformerEncoder", "__version__", "register"]

# What type checkers take for true. typing has a constant of this name, but every
# interpreter of the environment would import it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from espnet_fastformer.encoder.aft_encoder import AFTEncoder
    from espnet_fastformer.encoder.fastformer_encoder import FastformerEncoder
else:
    _LAZY = {class_name: module for module, class_name in ENCODERS.values()}

    def __getattr__(name: str) -> type:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
