"""The commands of all pages, against the parsers that will read them."""

import argparse
import importlib
import re
import shlex
import subprocess
from collections.abc import Callable
from importlib.metadata import metadata
from pathlib import Path

import pytest
from espnet2.bin import asr_inference, asr_inference_streaming
from espnet2.tasks.asr import ASRTask
from torch.distributed.run import get_args_parser as get_torchrun_parser

from tests.test_docs import PAGES, ROOT

RECIPE_DIR = ROOT / "egs" / "librispeech"
# No program but bash itself is found there, so that every command comes here.
RECORDER = r"""
PATH=/nowhere
command_not_found_handle() { printf '%s\0' "$#" "$@"; } >&3
exec 3>&1 >/dev/null
"""
# Programs of others.
OTHERS = {"arecord", "cat", "hf", "pre-commit", "ruff", "sed", "sherpa-onnx", "uv"}
# Stands for options, those that every command of ESPnet's recogniser needs among them.
ANY = {"...", "[options]"}
NEEDED = [
    *("--asr_train_config", "config.yaml", "--asr_model_file", "model.pth"),
    *("--data_path_and_name_and_type", "wav.scp,speech,sound", "--output_dir", "out"),
]


class Parsed(Exception):
    """The options are what the program takes."""


def commands(page: Path, directory: Path) -> list[list[str]]:
    """Let bash expand the shell blocks of a page, and commands in its tables."""
    text = page.read_text()
    script = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.M | re.S)
    script += re.findall(r"\| `((?:bash|python) [^`]*)` \|$", text, re.M)
    script = "\n".join(script).replace("/path/to/espnet-fastformer", str(ROOT))
    # Only what has no slash is looked for in PATH.
    script = re.sub(r"(?<!\S)\.(?:venv/bin)?/", "", script)
    done = subprocess.run(
        ["bash", "-uc", f"{RECORDER}{script}\n:"],
        cwd=directory,
        capture_output=True,
        check=True,
        text=True,
    )
    words = iter(done.stdout.split("\0")[:-1])
    return [[next(words) for _ in range(int(number))] for number in words]


@pytest.fixture
def parse(monkeypatch) -> Callable[[Callable, list[str]], None]:
    """Runs a main function until it has parsed its options."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(*args, **kwargs):
        parse_args(*args, **kwargs)
        raise Parsed

    def parse(main, arguments):
        with monkeypatch.context() as patch, pytest.raises(Parsed):
            patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
            main(arguments)

    return parse


@pytest.fixture
def recipe(monkeypatch) -> Callable[[list[str]], None]:
    """Parses what follows run.py or run.sh."""
    monkeypatch.syspath_prepend(RECIPE_DIR)
    get_parser = importlib.import_module("run").get_parser
    parse_asr_config = importlib.import_module("src.espnet2_config").parse_asr_config

    def parse(arguments):
        options, overrides = get_parser().parse_known_args(arguments)
        overrides += ["--token_type", options.token_type]
        parse_asr_config(find(options.asr_config), overrides)

    return parse


def find(config: Path | None) -> Path:
    """Return a configuration of the repository, for one that a reader has too."""
    if config is None or config.parent.name != "conf":
        config = ROOT / "conf" / "train_asr_ctc_fastformer_small.yaml"
    return config


def check_study(arguments: list[str]) -> None:
    module = importlib.import_module("benchmarks.study.__main__")
    options, rest = module.get_parser().parse_known_args(arguments)
    assert options.study.is_file()
    module.run.get_parser().parse_args(rest)


def check_espnets_recipe(arguments: list[str]) -> None:
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    config = ["--config", str(find(Path(options["--asr_config"])))]
    overrides = shlex.split(options.get("--asr_args", ""))
    args = ASRTask.get_parser().parse_args(config + overrides)
    search = options.get("--inference_config")
    if search:
        average = options.get("--inference_asr_model", "valid.acc.ave.pth")
        criteria = args.best_model_criterion
        assert average in {f"{phase}.{name}.ave.pth" for phase, name, _ in criteria}
        streams = options.get("--use_streaming") == "true"
        program = asr_inference_streaming if streams else asr_inference
        program.get_parser().parse_args(["--config", search, *NEEDED])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands(page, tmp_path, monkeypatch, parse, recipe):
    monkeypatch.chdir(ROOT)

    def check(command: list[str]) -> None:
        program, *arguments = (word for word in command if word not in ANY)
        if program == "python" and arguments[0] == "-m":
            name, *arguments = arguments[1:]
            if name == "benchmarks.study":
                check_study(arguments)
                return
            if name.startswith("espnet2.bin.asr_inference") and "..." in command:
                arguments += NEEDED
            parse(importlib.import_module(name).main, arguments)
        elif program in {"bash", "python"}:
            script, *arguments = arguments
            assert Path(script).is_file()
            if script in {"egs/librispeech/run.sh", "egs/librispeech/run.py"}:
                recipe(arguments)
            else:
                assert script in {"tests/run.sh", "tests/style.sh"}
        elif program == "espnet-fastformer":
            name, *arguments = arguments
            module = importlib.import_module(f"espnet_fastformer.bin.{name}")
            module.get_parser().parse_args(arguments)
        elif program == "pip":
            extras = re.findall(r"\[(\w+)\]", arguments[1])
            assert {*extras} <= {
                *metadata("espnet-fastformer").get_all("Provides-Extra")
            }
        elif program == "run.sh":
            check_espnets_recipe(arguments)
        elif program == "sbatch":
            wrapped = shlex.split(arguments[-1])
            check(wrapped[wrapped.index("python") :])
        elif program == "sphinx-build":
            parse(importlib.import_module("sphinx.cmd.build").main, arguments)
        elif program == "torchrun":
            args = get_torchrun_parser().parse_args(arguments)
            module = ["-m"] if args.module else []
            check(["python", *module, args.training_script, *args.training_script_args])
        else:
            assert program in OTHERS

    found = commands(page, tmp_path)
    assert found or "```sh" not in page.read_text()
    for command in found:
        check(command)
