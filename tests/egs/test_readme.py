"""The commands of egs/README.md, against the parsers that will read them."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from espnet2.bin import asr_inference
from espnet2.tasks.asr import ASRTask
from torch.distributed.run import get_args_parser as get_torchrun_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "egs" / "README.md").read_text()


def commands() -> list[list[str]]:
    """Split the README's shell blocks into commands, with their variables filled in."""
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S))
    script = script.replace("\\\n", " ")
    variables = {"conf": str(ROOT / "conf")}
    for name, value in re.findall(r'^(\w+)="([^"]*)"$', script, re.M):
        # Inside of --wrap, a line break would end the command.
        assert "\n" not in value
        variables[name] = re.sub(r"\$(\w+)", lambda match: variables[match[1]], value)
    script = re.sub(r'^\w+=("[^"]*"|\S+)$', "", script, flags=re.M)
    script = re.sub(r"\$(\w+)", lambda match: variables[match[1]], script)
    lines = (shlex.split(line, comments=True) for line in script.splitlines())
    return [command for command in lines if command]


def after(command: list[str], program: str) -> list[str]:
    return command[command.index(program) + 1 :]


def test_our_recipes_commands(monkeypatch):
    monkeypatch.chdir(ROOT)
    # As of run.py.
    monkeypatch.syspath_prepend(ROOT / "egs" / "librispeech")
    from run import get_parser
    from src.espnet2_config import parse_asr_config

    found = 0
    for command in commands():
        if command[0] == "sbatch":
            command = shlex.split(command[-1])
        for program in ("egs/librispeech/run.sh", "egs/librispeech/run.py"):
            if program not in command:
                continue
            found += 1
            options, overrides = get_parser().parse_known_args(after(command, program))
            args = parse_asr_config(options.asr_config, overrides)
            assert args.max_epoch > 70
    assert found == 7


def test_torchruns_commands():
    programs = []
    for command in commands():
        if not command[0].endswith("torchrun"):
            continue
        args = get_torchrun_parser().parse_args(command[1:])
        assert (args.nnodes, args.nproc_per_node) == ("2", "8")
        programs.append(args.training_script)
        if args.module:
            options = [o for o in args.training_script_args if o != "..."]
            args = ASRTask.get_parser().parse_args(options)
            assert (args.ngpu, args.multiprocessing_distributed) == (1, False)
    assert programs == ["egs/librispeech/run.py", "espnet2.bin.asr_train"]


def test_espnets_commands():
    found = 0
    for command in commands():
        if command[0] != "./run.sh":
            continue
        found += 1
        options = dict(zip(command[1::2], command[2::2], strict=True))
        config = ["--config", options["--asr_config"]]
        overrides = shlex.split(options.get("--asr_args", ""))
        args = ASRTask.get_parser().parse_args(config + overrides)
        search = options.get("--inference_config")
        if search:
            average = options["--inference_asr_model"]
            assert average in {
                f"{phase}.{criterion}.ave.pth"
                for phase, criterion, _ in args.best_model_criterion
            }
            asr_inference.get_parser().parse_args(
                ["--config", search, "--output_dir", "decode"]
                + ["--data_path_and_name_and_type", "a,speech,sound"]
            )
    assert found == 6


def rows() -> list[tuple[str, list[str]]]:
    table = README.partition("| configuration |")[2].partition("\n\n")[0]
    return [
        (names, columns)
        for _, names, *columns, _ in (
            line.split("|") for line in table.splitlines()[2:]
        )
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("train_asr_*.yaml")))
def test_batches_of_all_gpus_together_stay_the_same(path):
    if path.stem.endswith("_small"):
        return
    # The last row that fits is the most special one.
    (columns,) = [
        columns
        for names, columns in rows()
        if any(path.match(name) for name in re.findall(r"`(.+?)`", names))
    ][-1:]
    config = yaml.safe_load(path.read_text())
    cells = [tuple(int(n) for n in column.split("×")) for column in columns]
    assert cells[0] == (config["batch_bins"], config["accum_grad"])
    for num_gpus, (bins, accumulated) in zip((1, 2, 4, 8), cells, strict=True):
        assert bins * accumulated == config["batch_bins"] * config["accum_grad"]
        assert bins / num_gpus <= config["batch_bins"]
