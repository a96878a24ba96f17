"""Puts the encoders into ESPnet's registries, in whichever order things are imported.

Every Python interpreter of an environment with this package imports this module at
start-up, so it costs next to nothing: it imports little of the standard library, and
torch and ESPnet only once an ESPnet task is there to be extended.
"""

import sys
from _thread import get_ident
from importlib import import_module

ENCODERS = {
    "aft": ("espnet_fastformer.encoder.aft_encoder", "AFTEncoder"),
    "fastformer": (
        "espnet_fastformer.encoder.fastformer_encoder",
        "FastformerEncoder",
    ),
}

# The registries whose encoders are called as ESPnet's AbsEncoder says. ESPnet's
# extra_mt_encoder_choices is left out: its model unpacks two results, not three.
REGISTRIES = {
    "espnet2.tasks.asr": ("encoder_choices",),
    "espnet2.tasks.asvspoof": ("encoder_choices",),
    "espnet2.tasks.cls": ("encoder_choices",),
    "espnet2.tasks.diar": ("encoder_choices",),
    "espnet2.tasks.enh_s2t": (
        "asr_encoder_choices",
        "diar_encoder_choices",
        "st_encoder_choices",
    ),
    "espnet2.tasks.gan_tok": ("asr_encoder_choices",),
    "espnet2.tasks.mt": ("encoder_choices",),
    "espnet2.tasks.s2st": ("encoder_choices", "unit_encoder_choices"),
    "espnet2.tasks.s2t": ("encoder_choices",),
    "espnet2.tasks.slu": ("encoder_choices",),
    "espnet2.tasks.ssl": ("encoder_choices",),
    "espnet2.tasks.st": (
        "encoder_choices",
        "hier_encoder_choices",
        "md_encoder_choices",
    ),
    "espnet3.systems.esp2_asr.task": ("encoder_choices",),
}

# Where ESPnet defines its function of the name below, and where it was imported by
# name if this package comes later.
ATTENTIONS = "calculate_all_attentions"
HOLDERS_OF_ATTENTIONS = (
    "espnet2.main_funcs.calculate_all_attentions",
    "espnet2.train.trainer",
)

_warned: set[str] = set()


def register() -> None:
    """Make `fastformer` and `aft` known to every compatible ESPnet task.

    Tasks that are imported already are extended at once, all others right after their
    import. A command-line parser that ESPnet built before knows the names of that
    time only. Calling this again is harmless.

    ESPnet's attention plots learn to show the weights of these encoders alike.

    Nothing is raised: what cannot be registered (a name that another class holds, a
    class that a registry does not accept, a registry that this ESPnet does not have)
    is left as it is and logged, once, as a warning of the logger
    `espnet_fastformer.registration`.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if not isinstance(sys.meta_path, _MetaPath):
        sys.meta_path = _MetaPath(sys.meta_path)
    for module_name in (*HOLDERS_OF_ATTENTIONS, *REGISTRIES):
        if sys.modules.get(module_name) is not None:
            # Waits for a thread that has not finished importing the module.
            _extend(import_module(module_name), module_name)


def _extend(module, module_name: str) -> None:
    if module_name in HOLDERS_OF_ATTENTIONS:
        _extend_attentions(module)
    else:
        _register_in(module, module_name)


def _extend_attentions(module) -> None:
    try:
        weights = import_module("espnet_fastformer.attention_weights")
        original = getattr(module, ATTENTIONS)
        setattr(module, ATTENTIONS, weights.extend_calculate_all_attentions(original))
    except Exception as error:
        _warn_once("could not extend ESPnet's attention plots", error)


def qualified_name(name: str) -> str:
    """Return the encoder's name with that of its package, known to ESPnet as well.

    For models that go elsewhere: where the package is missing, ESPnet's message ends in
    the name that it does not know.
    """
    return f"espnet-fastformer:{name}"


def _register_in(task, module_name: str) -> None:
    for name, (encoder_module, class_name) in ENCODERS.items():
        try:
            encoder = getattr(import_module(encoder_module), class_name)
        except Exception as error:
            _warn_once(f"could not import the encoder {name!r}", error)
            continue
        for registry_name in REGISTRIES[module_name]:
            try:
                registry = getattr(task, registry_name)
                _add(registry, qualified_name(name), encoder)
                _add(registry, name, encoder)
            except Exception as error:
                _warn_once(
                    f"could not register the encoder {name!r} in "
                    f"{module_name}.{registry_name}",
                    error,
                )


def _add(registry, name: str, encoder: type) -> None:
    """Add what ESPnet's `ClassChoices` would have accepted in its constructor."""
    base = registry.base_type
    if not issubclass(encoder, base):
        raise TypeError(
            f"{encoder.__module__}.{encoder.__qualname__} is not a subclass of "
            f"{base.__module__}.{base.__qualname__}"
        )
    holder = registry.classes.setdefault(name, encoder)
    if holder is not encoder:
        raise ValueError(
            f"the name is taken by {holder.__module__}.{holder.__qualname__}, "
            "which stays in place"
        )


def _warn_once(failure: str, error: Exception) -> None:
    message = f"espnet_fastformer {failure}: {type(error).__name__}: {error}"
    if message in _warned:
        return
    _warned.add(message)
    # Not the warnings module: ESPnet silences UserWarning in places, and "-W error"
    # would turn this into a failure of the import that it follows.
    import logging

    logging.getLogger(__name__).warning(message)


class _MetaPath(list):
    """`sys.meta_path` that has the finder below asked first, wherever it stands.

    Import hooks, such as typeguard's, insert theirs at the front when they come, and
    the first finder that finds a module keeps all others from it.
    """

    def __iter__(self):
        return iter(sorted(super().__iter__(), key=lambda f: f is not _finder))


class _ExtendingFinder:
    """Lets the other finders find a module, and wraps the loader they give."""

    def __init__(self):
        self._searching = set()

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in REGISTRIES and fullname not in HOLDERS_OF_ATTENTIONS:
            return None
        # Another finder may in turn ask all finders, this one included.
        search = (get_ident(), fullname)
        if search in self._searching:
            return None
        self._searching.add(search)
        try:
            spec = self._find_elsewhere(fullname, path, target)
        finally:
            self._searching.discard(search)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _ExtendingLoader(spec)
        return spec

    def _find_elsewhere(self, fullname, path, target):
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None


class _ExtendingLoader:
    """Stands in for a module's loader until it has run the module."""

    def __init__(self, spec):
        self._spec = spec
        self._loader = spec.loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        # Whoever asks for the loader from here on (inspect, importlib.resources, the
        # module itself) gets the real one.
        self._spec.loader = self._loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        _extend(module, self._spec.name)


_finder = _ExtendingFinder()
