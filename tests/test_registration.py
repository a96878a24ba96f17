"""The hook on task modules of our own, which the real import system imports.

That ESPnet's own tasks are extended is the matter of test_packaging.py, for it takes
fresh interpreters.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import logging
import runpy
import sys
import threading

import pytest
import torch
import typeguard
from espnet2.asr.encoder.transformer_encoder import TransformerEncoder

import espnet_fastformer
from espnet_fastformer import AFTEncoder, FastformerEncoder, register, registration
from tests.environment import ROOT

OURS = {"fastformer": FastformerEncoder, "aft": AFTEncoder}
TASK = '''
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from espnet2.asr.encoder.transformer_encoder import TransformerEncoder
from espnet2.train.class_choices import ClassChoices

loader_while_running = __spec__.loader
encoder_choices = ClassChoices(
    "encoder", {"transformer": TransformerEncoder}, type_check=AbsEncoder
)


def documented():
    """Found by inspect."""
'''


@pytest.fixture
def task_path(tmp_path, monkeypatch):
    """A folder on sys.path where `a_task` is a task with a registry to be extended."""
    monkeypatch.setitem(registration.REGISTRIES, "a_task", ("encoder_choices",))
    monkeypatch.setattr(registration, "HOLDERS_OF_ATTENTIONS", ("a_trainer",))
    monkeypatch.setattr(registration, "_warned", set())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    register()
    yield tmp_path
    sys.modules.pop("a_task", None)
    sys.modules.pop("a_trainer", None)


def write_task(folder, source=TASK, name="a_task"):
    (folder / f"{name}.py").write_text(source)
    importlib.invalidate_caches()


def import_task():
    return importlib.import_module("a_task")


def registered(task):
    return {n: c for n, c in task.encoder_choices.classes.items() if n in OURS}


def messages(caplog):
    return [r.getMessage() for r in caplog.records if r.name == registration.__name__]


class FixedFinder(importlib.abc.MetaPathFinder):
    """Finds one module: the one of the given spec."""

    def __init__(self, spec):
        self.spec = spec

    def find_spec(self, name, path=None, target=None):
        return self.spec if name == self.spec.name else None


def test_the_package_under_test_is_this_checkout():
    assert espnet_fastformer.__path__ == [str(ROOT / "espnet_fastformer")]


def test_public_names():
    for name in espnet_fastformer.__all__:
        assert getattr(espnet_fastformer, name) is not None
        assert name in dir(espnet_fastformer)
    with pytest.raises(AttributeError, match="espnet_fastformer.*'NoEncoder'"):
        _ = espnet_fastformer.NoEncoder


def test_a_task_is_extended_right_after_its_import(task_path, caplog):
    write_task(task_path)
    assert registered(import_task()) == OURS
    assert messages(caplog) == []


def test_names_that_say_the_package(task_path):
    write_task(task_path)
    classes = import_task().encoder_choices.classes
    for name, encoder in OURS.items():
        assert classes[f"espnet-fastformer:{name}"] is encoder


def test_a_task_that_is_imported_already_is_extended_at_once(task_path):
    write_task(task_path)
    sys.meta_path.remove(registration._finder)
    task = import_task()
    assert registered(task) == {}
    register()
    assert registered(task) == OURS


def test_registering_again_changes_nothing(task_path, caplog):
    write_task(task_path)
    task = import_task()
    finders, classes = list(sys.meta_path), dict(task.encoder_choices.classes)
    register()
    assert sys.meta_path == finders
    assert task.encoder_choices.classes == classes
    assert messages(caplog) == []


def test_reloading_a_task_extends_it_again(task_path):
    write_task(task_path)
    task = import_task()
    old = task.encoder_choices
    importlib.reload(task)
    assert task.encoder_choices is not old
    assert registered(task) == OURS


def test_the_original_loader_stays_reachable(task_path):
    write_task(task_path)
    before = importlib.util.find_spec("a_task")
    assert before.loader.get_code("a_task").co_name == "<module>"
    task = import_task()
    assert type(task.__loader__) is importlib.machinery.SourceFileLoader
    assert task.__spec__.loader is task.__loader__
    assert task.loader_while_running is task.__loader__
    assert "Found by inspect" in inspect.getsource(task.documented)


def test_a_task_run_as_a_script(task_path):
    write_task(task_path)
    assert "encoder_choices" in runpy.run_module("a_task", run_name="__main__")


def test_a_lazily_loaded_task_is_extended_when_it_loads(task_path):
    write_task(task_path)
    spec = importlib.util.find_spec("a_task")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    task = importlib.util.module_from_spec(spec)
    sys.modules["a_task"] = task
    spec.loader.exec_module(task)
    assert registered(task) == OURS


def test_an_error_in_a_task_reaches_the_one_who_imports_it(task_path):
    write_task(task_path, "raise KeyError('from the task')")
    with pytest.raises(KeyError, match="from the task"):
        import_task()
    assert "a_task" not in sys.modules
    write_task(task_path, TASK + "# now whole\n")
    assert registered(import_task()) == OURS


def test_a_task_that_is_missing_stays_missing(task_path):
    with pytest.raises(ModuleNotFoundError, match="a_task"):
        import_task()


def test_a_namespace_package_has_no_loader_to_wrap(task_path):
    (task_path / "a_task").mkdir()
    importlib.invalidate_caches()
    spec = importlib.machinery.PathFinder.find_spec("a_task")
    spec.loader = None
    sys.meta_path.insert(1, FixedFinder(spec))
    assert list(import_task().__path__) == [str(task_path / "a_task")]


def test_a_loader_without_exec_module_is_left_alone(task_path):
    class OldLoader:
        def load_module(self, name):
            return sys.modules.setdefault(name, type(sys)(name))

    sys.meta_path.insert(
        1, FixedFinder(importlib.machinery.ModuleSpec("a_task", OldLoader()))
    )
    with pytest.warns(ImportWarning):
        assert type(import_task().__loader__) is OldLoader


def install_finder(package):
    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            return importlib.machinery.PathFinder.find_spec(name, path, target)

    sys.meta_path.insert(0, Finder())


@pytest.mark.parametrize(
    "install, loader",
    [
        (install_finder, "SourceFileLoader"),
        (typeguard.install_import_hook, "TypeguardLoader"),
    ],
)
def test_import_hooks_that_come_later(task_path, install, loader):
    write_task(task_path)
    install("a_task")
    task = import_task()
    assert registered(task) == OURS
    assert type(task.__loader__).__name__ == loader


def test_other_finders_keep_their_place(task_path):
    finder = FixedFinder(importlib.machinery.ModuleSpec("no_task", None))
    sys.meta_path.insert(0, finder)
    register()
    assert sys.meta_path.pop(0) is finder


def test_finders_without_find_spec_are_passed_over(task_path):
    write_task(task_path)
    sys.meta_path.insert(1, object())
    assert registered(import_task()) == OURS


@pytest.mark.parametrize("position", [0, 1])
def test_a_finder_that_asks_all_others_in_turn(task_path, position):
    class Delegating(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            others = [f for f in sys.meta_path if f is not self]
            specs = (f.find_spec(name, path, target) for f in others)
            return next((spec for spec in specs if spec is not None), None)

    write_task(task_path)
    sys.meta_path.insert(position, Delegating())
    assert registered(import_task()) == OURS


def test_threads_that_import_and_register_at_the_same_time(task_path, caplog):
    write_task(task_path, "import time\ntime.sleep(0.1)\n" + TASK)
    sys.meta_path.remove(registration._finder)
    barrier, seen = threading.Barrier(8), []

    def importing():
        barrier.wait()
        register()
        seen.append(registered(import_task()))

    threads = [threading.Thread(target=importing) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [OURS] * 8
    assert messages(caplog) == []


def test_a_name_that_another_class_holds_stays_with_it(task_path, caplog):
    write_task(task_path, TASK.replace('"transformer"', '"aft"'))
    task = import_task()
    assert registered(task) == {**OURS, "aft": TransformerEncoder}
    register()
    (message,) = messages(caplog)
    assert "'aft' in a_task.encoder_choices" in message
    assert "transformer_encoder.TransformerEncoder" in message
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_registry_of_another_type_is_left_alone(task_path, caplog):
    write_task(task_path, TASK.replace("=AbsEncoder", "=TransformerEncoder"))
    assert registered(import_task()) == {}
    assert len(messages(caplog)) == len(OURS)
    assert all("is not a subclass of" in message for message in messages(caplog))


def test_a_task_without_the_registry_is_imported_all_the_same(task_path, caplog):
    write_task(task_path, "answer = 42\n")
    assert import_task().answer == 42
    assert len(messages(caplog)) == len(OURS)
    assert all("no attribute 'encoder_choices'" in m for m in messages(caplog))


def test_an_encoder_that_cannot_be_imported_is_named(task_path, caplog, monkeypatch):
    monkeypatch.setitem(registration.ENCODERS, "aft", ("no_such_module", "AFTEncoder"))
    write_task(task_path)
    task = import_task()
    assert registered(task) == {"fastformer": FastformerEncoder}
    assert messages(caplog) == [
        "espnet_fastformer could not import the encoder 'aft': "
        "ModuleNotFoundError: No module named 'no_such_module'"
    ]


@pytest.mark.parametrize("is_late", [False, True])
def test_attention_plots_are_extended_once(task_path, is_late, caplog):
    source = "def calculate_all_attentions(model, batch):\n    return {'espnet': [1]}\n"
    write_task(task_path, source, "a_trainer")
    if is_late:
        sys.meta_path.remove(registration._finder)
    trainer = importlib.import_module("a_trainer")
    if is_late:
        register()
    extended = trainer.calculate_all_attentions
    assert extended.shows_mixers
    assert extended(torch.nn.Identity(), {}) == {"espnet": [1]}
    register()
    assert trainer.calculate_all_attentions is extended
    assert messages(caplog) == []


def test_a_trainer_without_attention_plots_is_imported_all_the_same(task_path, caplog):
    write_task(task_path, "answer = 42\n", "a_trainer")
    assert importlib.import_module("a_trainer").answer == 42
    (message,) = messages(caplog)
    assert "could not extend ESPnet's attention plots: AttributeError" in message
