"""The stages of a study, in the directory that it is kept in."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from benchmarks.measure import Result, Settings
from benchmarks.results import describe_machine, table

from .jobs import Job, last_line, run_jobs
from .joined import (
    find_decodings,
    find_joined,
    join_subset,
    write_decodings,
)
from .models import count_parameters, parse_options
from .page import NotRun, read_around_marks, write_page
from .recipe import mixed_precision, open_manifest, resolve_corpus
from .results import (
    CONFIG,
    FAILURE,
    SPEED,
    RowResult,
    Speed,
    count_updates,
    has_scores,
    read_row,
    read_speed,
    write_speed,
)
from .rows import Row, Study, read_study, size_row, with_budget
from .speed import mean_batch, measure_rows

TRAIN = Path(__file__).with_name("train.py")
PREPARATION = ("create_dataset", "train_tokenizer", "collect_stats")
# Options of run.py that make another training of it. Test subsets can be added.
LASTING_OPTIONS = (
    "corpus",
    "corpus_conf",
    "nbpe",
    "skip_broken_utterances",
    "speed_perturb_factors",
    "token_type",
    "train_subsets",
    "valid_subsets",
)
# Characters of English, with what ESPnet adds: what models are counted with before
# there is a token list.
NUM_CHARACTERS = 31
# A machine may be busy with something else for a while.
TIME_LIMIT = 3600.0


class StudyError(Exception):
    """What keeps the whole study from going on."""


def describe_command(arguments: Sequence[str]) -> str:
    """Return a command without the places that directories have on this machine."""
    portable = [
        Path(a).name if os.path.isabs(a) or ".." in Path(a).parts else a
        for a in arguments
    ]
    return shlex.join(["python", "-m", "benchmarks.study", *portable])


class Runner:
    """A study in the directory that it is kept in.

    Args:
        options: Of this command.
        recipe: Options of run.py.
        recipe_command: The same as the command line gives them.
        shared_command: Arguments of this command that are those of all its parts:
            all but rows, seeds and stages.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        recipe: argparse.Namespace,
        recipe_command: Sequence[str],
        shared_command: Sequence[str],
    ) -> None:
        self.options = options
        self.recipe = recipe
        self.recipe_command = list(recipe_command)
        self.shared_command = list(shared_command)
        self.exp_dir = options.exp_dir.absolute()
        self.study: Study = read_study(options.study)
        self.rows = self.study.choose(options.rows)
        self.against = options.against or self.study.reference
        if self.against not in self.study.rows:
            raise ValueError(
                f"--against {self.against}: there is no such row. Rows: "
                f"{', '.join(self.study.rows)}"
            )
        self.page = options.page or self.exp_dir / "RESULTS.md"
        self.threads = max(1, torch.get_num_threads() // options.jobs)
        number = recipe.nbpe if recipe.token_type == "bpe" else NUM_CHARACTERS
        self.placeholders = [str(index) for index in range(number)]

    def check(self) -> None:
        """Size the models, show their sizes and keep their configs.

        Raises:
            ValueError: A row is too large or too small, or was trained otherwise, or
                the page is not one to write to.
        """
        read_around_marks(self.page)
        self._check_lasting_options()
        reference = self.study.rows[self.study.reference]
        _, wanted = self._size(reference, None)
        lines, off, configs = [], [], []
        for row in self._with_others(reference.name):
            config, parameters = self._size(row, wanted)
            share = parameters / wanted - 1
            size = str(config["encoder_conf"][row.fit])
            lines.append(
                (row.name, f"{parameters:,}", f"{share:+.1%}", f"{row.fit} {size}")
            )
            if abs(share) > self.study.tolerance:
                off.append(row.name)
            configs.append((row, config))
        header = ("encoder", "parameters", "against the reference", "size")
        print(table(header, lines), flush=True)
        if off:
            raise ValueError(
                f"parameters differ by more than {self.study.tolerance:.0%} from "
                f"{self.study.reference}: {', '.join(off)}. Leave the size out of its "
                "encoder_conf to have it fitted, or let `fit` name another size"
            )
        for row, config in configs:
            self._keep(row, config)

    def prepare(self) -> None:
        """Prepare the corpus, the tokens and the statistics that all rows share.

        Raises:
            StudyError: It failed.
        """
        if self._is_prepared():
            return
        command = self._command(
            self._path(self.study.reference) / CONFIG,
            self._prepared,
            PREPARATION,
            self.options.inference_config,
        )
        job = Job("prepare the corpus", command, self.exp_dir / "prepare.log")
        for _, status in run_jobs([job], 1, torch.get_num_threads()):
            if status:
                raise StudyError(f"{last_line(job.log)} (see {job.log})")

    def speed(self) -> None:
        """Measure what has not been measured yet, rows taking turns.

        A row that gets the time of another is measured beside it, and is then given as
        many updates as fit, once and for all.
        """
        missing = [
            row for row in self._with_others() if not self._is_measured(row.name)
        ]
        if not missing:
            return
        names = [name for row in missing for name in (row.time_of, row.name) if name]
        rows = {name: self._parse(name) for name in names}
        config = self.study.rows[self.study.reference].asr_config
        stats_dir = Path(self._prepared_config("training").stats_dir)
        batch = mean_batch(stats_dir, config["batch_bins"])
        print(f"measure {', '.join(rows)}", flush=True)
        results = measure_rows(
            rows, self._tokens, batch, self._machine, self._dtype(config)
        )
        for row in missing:
            if row.time_of is not None:
                self._give_time(row, results[row.time_of][0], results[row.name][0])
        machine = self._machine
        for name, measured in results.items():
            speed = Speed(machine.device, machine.threads, measured)
            write_speed(self._path(name), speed)

    def train(self) -> None:
        """Train, decode and score what is not finished.

        Raises:
            StudyError: A row that gets the time of another is not measured.
        """
        for row in self.rows:
            needed = (row.time_of, row.name) if row.time_of is not None else ()
            if not (self._is_trained(row.name) or all(map(self._is_measured, needed))):
                raise StudyError(f"{row.name}: the stage speed has not measured it")
        self._run(
            ("train", "infer", "measure"),
            self.options.inference_config,
            self._subsets["test"],
            self.recipe_command,
            is_wanted=lambda directory: True,
        )

    def joined(self) -> None:
        """Decode and score the joined test subsets with what is trained.

        Raises:
            StudyError: The recordings would be too long.
        """
        lengths = self.options.joined_seconds
        if not lengths:
            return
        directory = self.exp_dir / "joined"
        directory.mkdir(parents=True, exist_ok=True)
        for subset in {*self._subsets["train"], *self._subsets["valid"]}:
            link = directory / subset
            if not link.is_symlink():
                link.symlink_to(self._corpus / subset)
        for subset in self._subsets["test"]:
            data_dir = self._prepared_config("training").data_dir
            utterances = open_manifest(subset, self._corpus, data_dir).read()
            texts = {Path(u.audio): u.text for u in utterances}
            for seconds in lengths:
                try:
                    join_subset(texts, subset, seconds, directory)
                except ValueError as error:
                    raise StudyError(str(error)) from error
        search = self.options.joined_inference_config
        decodings = write_decodings(search, self.options.pooling_windows, directory)
        # Those of other lengths too: the scores of a decoding are of one run.
        names = [
            name
            for subset in self._subsets["test"]
            for name in find_joined(directory, subset)
        ]
        subsets = {**self._subsets, "test": names}
        command = ["--corpus", str(directory), "--token_type", self.recipe.token_type]
        command += ["--nbpe", str(self.recipe.nbpe)]
        command += ["--data_dir", str(directory / "data")]
        if self.recipe.ngpu is not None:
            command += ["--ngpu", str(self.recipe.ngpu)]
        if self.recipe.skip_broken_utterances:
            command.append("--skip_broken_utterances")
        for role, members in subsets.items():
            command += [f"--{role}_subsets", *members]
        apart = (search, self._subsets["test"], self.recipe_command)
        for decoding, decoded, options in (
            apart,
            *((decoding, names, command) for decoding in decodings),
        ):
            self._run(
                ("infer", "measure"),
                decoding,
                decoded,
                options,
                is_wanted=self._is_finished,
            )

    def report(self) -> None:
        """Write and print the tables."""
        test = self._subsets["test"]
        directory = self.exp_dir / "joined"
        search = self.options.inference_config.stem
        joined_search = self.options.joined_inference_config.stem
        unlike = "" if joined_search == search else f", {joined_search}"
        joined = {
            subset: {f"{subset}{unlike}": (joined_search, subset)}
            | {
                f"{name}{end}": (decoding, name)
                for name in find_joined(directory, subset)
                for decoding, end in find_decodings(directory, joined_search).items()
            }
            for subset in test
        }
        decoded = {subset: (search, subset) for subset in test}
        for names in joined.values():
            decoded |= names
        started = [
            self._read(row, decoded)
            for row in self.study.rows.values()
            if self._is_trained(row.name)
        ]
        rows = [row for row in started if row.failures or any(map(row.seeds, test))]
        commands = (self.exp_dir / "commands.txt").read_text("utf-8").splitlines()
        facts = {
            "machine": describe_machine(self._machine),
            "commands": list(dict.fromkeys(commands)),
            "settings": self._settings(rows),
        }
        print(
            write_page(
                self.page,
                rows,
                self.against,
                test,
                {s: list(names) for s, names in joined.items()},
                facts,
                self._not_run(started),
            )
        )
        print(f"\nin {self.page}")

    def _is_prepared(self) -> bool:
        try:
            training = self._prepared_config("training")
        except StudyError:
            return False
        # What its stages write last.
        stats = [
            Path(training.stats_dir, role, "token_shape") for role in ("train", "valid")
        ]
        asked = self.recipe.test_subsets
        return all(path.is_file() for path in stats) and (
            asked is None or asked == self._subsets["test"]
        )

    def _is_measured(self, name: str) -> bool:
        speed = read_speed(self._path(name))
        machine = self._machine
        return (
            speed is not None
            and (speed.device, speed.threads) == (machine.device, machine.threads)
            and not any(result.failure for result in speed.results)
        )

    def _give_time(self, row: Row, theirs: Result, own: Result) -> None:
        if theirs.failure or own.failure or self._is_trained(row.name):
            return
        config = with_budget(row.asr_config, theirs.median / own.median)
        path = self._path(row.name) / CONFIG
        sized = yaml.safe_load(path.read_text("utf-8")) | {
            key: config[key] for key in ("max_epoch", "scheduler_conf") if key in config
        }
        path.write_text(yaml.safe_dump(sized, sort_keys=False), "utf-8")
        print(f"{row.name}: {count_updates(sized):,} updates", flush=True)

    def _is_finished(self, training: Path) -> bool:
        decoding = self.options.inference_config.stem
        return has_scores(training, decoding, self._subsets["test"])

    def _is_trained(self, name: str) -> bool:
        return any(self._path(name).glob("seed*/"))

    def _path(self, name: str) -> Path:
        return self.exp_dir / name

    @property
    def _prepared(self) -> Path:
        return self.exp_dir / "prepare"

    def _prepared_config(self, role: str) -> DictConfig:
        path = self._prepared / "conf" / f"{role}.yaml"
        if not path.is_file():
            raise StudyError(f"{path} is not there: run the stage train first")
        return OmegaConf.load(path)

    @property
    def _subsets(self) -> dict[str, list[str]]:
        training = self._prepared_config("training").dataset
        test = self._prepared_config("metrics").dataset.test
        datasets = {"train": training.train, "valid": training.valid, "test": test}
        return {role: [d.name for d in members] for role, members in datasets.items()}

    @property
    def _corpus(self) -> Path:
        return resolve_corpus(self._prepared_config("training").source_dir)

    @property
    def _tokens(self) -> list[str]:
        path = Path(self._prepared_config("training").model.token_list)
        return path.read_text(encoding="utf-8").splitlines()

    @cached_property
    def _machine(self) -> Settings:
        ngpu = self.recipe.ngpu
        on_gpu = torch.cuda.is_available() if ngpu is None else ngpu > 0
        return Settings(
            device="cuda" if on_gpu else "cpu",
            threads=self.threads,
            time_limit=TIME_LIMIT,
        )

    def _dtype(self, config: Mapping[str, Any]) -> str:
        if not config.get("use_amp"):
            return "float32"
        precision = mixed_precision(self._machine.device == "cuda")
        return "bfloat16" if precision == "bf16-mixed" else "float32"

    def _size(self, row: Row, parameters: int | None) -> tuple[dict[str, Any], int]:
        if row.name == self.study.reference:
            parameters = None
        return size_row(row, self.recipe.token_type, self.placeholders, parameters)

    def _parse(self, name: str) -> argparse.Namespace:
        config = yaml.safe_load((self._path(name) / CONFIG).read_text("utf-8"))
        return parse_options(config, self.recipe.token_type)

    def _read(self, row: Row, decoded: Mapping[str, tuple[str, str]]) -> RowResult:
        parameters = count_parameters(self._parse(row.name), self._tokens)
        return read_row(self._path(row.name), parameters, decoded)

    def _not_run(self, started: Sequence[RowResult]) -> list[NotRun]:
        """Find the trainings that lack scores, and say how to run them."""
        trainings = {row.name: row.trainings for row in started}
        test = set(self._subsets["test"])
        lacking: dict[tuple[int, ...], list[str]] = {}
        for name in self.study.rows:
            own = trainings.get(name, {})
            done = {s for s, t in own.items() if t.failure or test <= t.errors.keys()}
            seeds = tuple(sorted({*self.options.seeds, *own} - done))
            if seeds:
                lacking.setdefault(seeds, []).append(name)
        return [
            NotRun(names, seeds, self._describe_part(names, seeds))
            for seeds, names in lacking.items()
        ]

    def _describe_part(self, names: Sequence[str], seeds: Sequence[int]) -> str:
        groups: dict[str, set[str]] = {}
        for row in self.study.rows.values():
            groups.setdefault(row.group, set()).add(row.name)
        whole = [group for group, rows in groups.items() if rows <= {*names}]
        others = [name for name in names if self.study.rows[name].group not in whole]
        return describe_command(
            [
                *self.shared_command,
                *("--rows", *whole, *others),
                *("--seeds", *map(str, seeds)),
            ]
        )

    def _with_others(self, *names: str) -> list[Row]:
        """Return these rows, those whose time the chosen ones get, and the chosen."""
        timed = (row.time_of for row in self.rows if row.time_of is not None)
        chosen = (row.name for row in self.rows)
        return [
            self.study.rows[name] for name in dict.fromkeys((*names, *timed, *chosen))
        ]

    def _check_lasting_options(self) -> None:
        now = {name: getattr(self.recipe, name) for name in LASTING_OPTIONS}
        path = self.exp_dir / "options.json"
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = [name for name in now if now[name] != before.get(name)]
            if changed and any(map(self._is_trained, self.study.rows)):
                raise ValueError(
                    f"{self.exp_dir} holds a study with other "
                    f"{', '.join(f'--{name}' for name in changed)}: give it again, or "
                    "another --exp_dir"
                )
            if changed:
                shutil.rmtree(self._prepared, ignore_errors=True)
                for name in self.study.rows:
                    (self._path(name) / SPEED).unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")

    def _keep(self, row: Row, config: Mapping[str, Any]) -> None:
        """Write the config of a row, or check that it is the one that is there."""
        path = self._path(row.name) / CONFIG
        if path.is_file():
            before = yaml.safe_load(path.read_text(encoding="utf-8"))
            if row.time_of is not None:
                # Once measured, the time that it has stays what it is.
                config = with_budget(config, before["max_epoch"] / config["max_epoch"])
            if before == config:
                return
            if self._is_trained(row.name):
                changed = [
                    key
                    for key in sorted({*before, *config})
                    if before.get(key) != config.get(key)
                ]
                raise ValueError(
                    f"{row.name} was trained with other {', '.join(changed)}: remove "
                    f"{path.parent}, or give another --exp_dir"
                )
            # What was measured is of another model.
            (path.parent / SPEED).unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False), "utf-8")

    def _command(
        self,
        config: Path,
        directory: Path,
        stages: Iterable[str],
        decoding: Path,
        recipe_command: Sequence[str] | None = None,
    ) -> list[str]:
        command = self.recipe_command if recipe_command is None else recipe_command
        return [
            *(sys.executable, str(TRAIN), *command),
            *("--asr_config", str(config), "--exp_dir", str(directory)),
            *("--inference_config", str(decoding), "--stages", *stages),
        ]

    def _run(
        self,
        stages: Sequence[str],
        decoding: Path,
        subsets: Sequence[str],
        recipe_command: Sequence[str],
        is_wanted: Callable[[Path], bool],
    ) -> None:
        """Run stages of the recipe for every row and seed that lacks their scores."""
        jobs, directories = [], {}
        for seed in self.options.seeds:
            for row in self.rows:
                directory = self._path(row.name) / f"seed{seed}"
                if has_scores(directory, decoding.stem, subsets):
                    continue
                if not is_wanted(directory):
                    continue
                command = self._command(
                    self._path(row.name) / CONFIG,
                    directory,
                    stages,
                    decoding,
                    recipe_command,
                )
                name = f"{row.name}, seed {seed}: {' '.join(stages)}"
                log = directory.with_suffix(".log")
                jobs.append(Job(name, [*command, "--seed", str(seed)], log))
                directories[log] = directory
        with closing(run_jobs(jobs, self.options.jobs, self.threads)) as ended:
            for job, status in ended:
                failure = directories[job.log] / FAILURE.format(decoding.stem)
                failure.parent.mkdir(parents=True, exist_ok=True)
                failure.unlink(missing_ok=True)
                if status:
                    reason = last_line(job.log) or f"exit status {status}"
                    failure.write_text(reason, encoding="utf-8")
                    print(f"FAILED {job.name}: {reason}", flush=True)

    def _settings(self, rows: Sequence[RowResult]) -> dict[str, str]:
        config = self.study.rows[self.study.reference].asr_config
        tokens = self.recipe.token_type
        if tokens == "bpe":
            tokens += f", {self.recipe.nbpe}"
        subsets = {role: ", ".join(names) for role, names in self._subsets.items()}
        threads = sorted({row.threads for row in rows if row.threads})
        return {
            "trained on": f"{subsets['train']}; validated on {subsets['valid']}",
            "tokens": tokens,
            "updates": f"{count_updates(config):,}",
            "batch_bins": f"{config['batch_bins']:,}",
            "optimizer": f"{config.get('optim')} {config.get('optim_conf')}, "
            f"{config.get('scheduler')} {config.get('scheduler_conf')}",
            "all encoders": str(self._common_encoder_conf()),
            "decoding": f"{self.options.inference_config.name}; joined: "
            f"{self.options.joined_inference_config.name}",
            "CER, WER": "percent; the average of the seeds, and each of them",
            "difference": f"CER less that of {self.against}, both of the seeds that "
            "both have, with the 95 % interval of a paired bootstrap over utterances",
            "update": "forward and backward of a batch of mean size, without the "
            f"optimizer; threads: {', '.join(map(str, threads)) or 'not measured'}",
        }

    def _common_encoder_conf(self) -> dict[str, Any]:
        confs = [row.asr_config["encoder_conf"] for row in self.study.rows.values()]
        reference = self.study.rows[self.study.reference].asr_config["encoder_conf"]
        return {
            key: value
            for key, value in reference.items()
            if all(conf.get(key) == value for conf in confs)
        }
