r"""Train and score many encoders under equal conditions, and compare them.

    python study.py --corpus /data/LibriSpeech --train_subsets train-clean-100 \
        --valid_subsets dev-clean --test_subsets test-clean test-other \
        --rows comparison windows --seeds 0 1 --jobs 2 --joined_seconds 30 120

The rows are those of conf/study.yaml, or of --study. Every option of run.py about the
corpus, the tokens and the machine is accepted too. A study that was stopped goes on
where it was when the same command is given again, and rows and seeds can be added.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import DictConfig, OmegaConf

RECIPE_DIR = Path(__file__).absolute().parent
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(RECIPE_DIR), str(ROOT)]

import run  # noqa: E402
from dataset.corpus import resolve_corpus  # noqa: E402
from src.configs import SUBSETS  # noqa: E402
from src.espnet2_config import mixed_precision  # noqa: E402
from src.study.jobs import Job, StillRunningError, last_line, run_jobs  # noqa: E402
from src.study.joined import join_subset, joined_name  # noqa: E402
from src.study.models import count_parameters, parse_options  # noqa: E402
from src.study.page import write_page  # noqa: E402
from src.study.results import (  # noqa: E402
    CONFIG,
    FAILURE,
    SPEED,
    RowResult,
    count_updates,
    has_scores,
    read_row,
    read_speed,
    write_speed,
)
from src.study.rows import Row, Study, read_study, size_row, with_budget  # noqa: E402
from src.study.speed import mean_batch, measure_rows  # noqa: E402

from benchmarks.measure import Settings  # noqa: E402
from benchmarks.results import describe_machine, table  # noqa: E402

STAGES = ("speed", "train", "joined", "report")
PREPARATION = ("create_dataset", "train_tokenizer", "collect_stats")
# Options of run.py that a study sets itself.
OWN_OPTIONS = ("asr_config", "encoder", "exp_tag")
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
JOINED = "decode_joined"


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of what run.py's own parser does not know."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--study",
        type=Path,
        default=RECIPE_DIR / "conf" / "study.yaml",
        help="rows and what they have in common (default: conf/study.yaml)",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ROW",
        help="names of rows, or of groups of them (default: the first group)",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="default: 0"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="trainings at the same time, which share out the threads (default: 1)",
    )
    parser.add_argument(
        "--joined_seconds",
        nargs="+",
        type=float,
        default=[],
        metavar="SECONDS",
        help="decode the test subsets joined to recordings of this length too",
    )
    parser.add_argument(
        "--inference_config",
        type=Path,
        default=run.CONF_DIR / "decode_ctc.yaml",
        help="ESPnet2 decoding config (default: conf/decode_ctc.yaml)",
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=STAGES,
        default=STAGES,
        metavar="STAGE",
        help=f"of {', '.join(STAGES)} (default: all). The sizes of the models are "
        "checked and shown in any case",
    )
    parser.add_argument(
        "--exp_dir",
        type=Path,
        default=RECIPE_DIR / "exp" / "study",
        help="where everything is kept (default: exp/study)",
    )
    parser.add_argument(
        "--page",
        type=Path,
        help="Markdown file whose part between two marks is written, such as "
        "docs/accuracy.md (default: EXP_DIR/RESULTS.md)",
    )
    return parser


class StudyError(Exception):
    """What keeps the whole study from going on."""


class Runner:
    """A study in the directory that it is kept in.

    Args:
        options: Of this command.
        recipe: Options of run.py.
        recipe_command: The same as the command line gives them.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        recipe: argparse.Namespace,
        recipe_command: Sequence[str],
    ) -> None:
        self.options = options
        self.recipe = recipe
        self.recipe_command = list(recipe_command)
        self.exp_dir = options.exp_dir.absolute()
        self.study: Study = read_study(options.study)
        self.rows = self.study.choose(options.rows)
        self.threads = max(1, torch.get_num_threads() // options.jobs)
        number = recipe.nbpe if recipe.token_type == "bpe" else NUM_CHARACTERS
        self.placeholders = [str(index) for index in range(number)]

    def check(self) -> None:
        """Size the models, show their sizes and keep their configs.

        Raises:
            ValueError: A row is too large or too small, or was trained otherwise.
        """
        self._check_lasting_options()
        reference = self.study.rows[self.study.reference]
        _, wanted = self._size(reference, None)
        lines, off = [], []
        for row in self._with_others(reference.name):
            config, parameters = self._size(row, wanted)
            share = parameters / wanted - 1
            size = str(config["encoder_conf"][row.fit])
            lines.append(
                (row.name, f"{parameters:,}", f"{share:+.1%}", f"{row.fit} {size}")
            )
            if abs(share) > self.study.tolerance:
                off.append(row.name)
            self._keep(row, config)
        header = ("encoder", "parameters", "against the reference", "size")
        print(table(header, lines), flush=True)
        if off:
            raise ValueError(
                f"parameters differ by more than {self.study.tolerance:.0%} from "
                f"{self.study.reference}: {', '.join(off)}. Leave the size out of its "
                "encoder_conf to have it fitted, or let `fit` name another size"
            )

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
        """Measure what has not been measured yet, rows taking turns."""
        missing = {
            row.name: self._parse(row.name)
            for row in self._with_others()
            if not read_speed(self._path(row.name))
        }
        if not missing:
            return
        config = self.study.rows[self.study.reference].asr_config
        stats_dir = Path(self._prepared_config("training").stats_dir)
        batch = mean_batch(stats_dir, config["batch_bins"])
        print(f"measure {', '.join(missing)}", flush=True)
        results = measure_rows(
            missing, self._tokens, batch, self._machine, self._dtype(config)
        )
        for name, measured in results.items():
            write_speed(self._path(name), measured)

    def train(self) -> None:
        """Train, decode and score what is not finished."""
        self.settle_updates()
        self._run(
            ("train", "infer", "measure"),
            self.options.inference_config,
            self._subsets["test"],
            self.recipe_command,
            is_wanted=lambda directory: True,
        )

    def settle_updates(self) -> None:
        """Give rows as many updates as fit into the time of another, once and for all.

        Raises:
            StudyError: One of them is not measured.
        """
        for row in self.rows:
            directory = self._path(row.name)
            if row.time_of is None or any(directory.glob("seed*/")):
                continue
            speeds = [read_speed(self._path(name)) for name in (row.time_of, row.name)]
            if not all(speeds) or any(results[0].failure for results in speeds):
                raise StudyError(f"{row.name}: the stage speed has not measured it")
            theirs, own = (results[0].median for results in speeds)
            config = with_budget(row.asr_config, theirs / own)
            path = directory / CONFIG
            sized = yaml.safe_load(path.read_text("utf-8"))
            sized |= {key: config[key] for key in ("max_epoch", "scheduler_conf")}
            path.write_text(yaml.safe_dump(sized, sort_keys=False), "utf-8")
            print(f"{row.name}: {count_updates(sized):,} updates", flush=True)

    def joined(self) -> None:
        """Decode and score the joined test subsets with what is trained."""
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
            for seconds in lengths:
                join_subset(self._corpus, subset, seconds, directory)
        decoding = directory / f"{JOINED}.yaml"
        # Long recordings fill the memory one by one.
        search = yaml.safe_load(self.options.inference_config.read_text("utf-8"))
        decoding.write_text(yaml.safe_dump({**search, "batch_size": 1}), "utf-8")
        names = [
            joined_name(subset, seconds)
            for subset in self._subsets["test"]
            for seconds in lengths
        ]
        subsets = {**self._subsets, "test": names}
        command = ["--corpus", str(directory), "--token_type", self.recipe.token_type]
        command += ["--nbpe", str(self.recipe.nbpe)]
        command += ["--data_dir", str(directory / "data")]
        if self.recipe.ngpu is not None:
            command += ["--ngpu", str(self.recipe.ngpu)]
        for role, members in subsets.items():
            command += [f"--{role}_subsets", *members]
        self._run(
            ("infer", "measure"),
            decoding,
            names,
            command,
            is_wanted=lambda path: any(path.glob("*.ave.pth")),
        )

    def report(self) -> None:
        """Write and print the tables."""
        test = self._subsets["test"]
        joined = {
            subset: [joined_name(subset, s) for s in self.options.joined_seconds]
            for subset in test
        }
        decodings = {
            self.options.inference_config.stem: test,
            JOINED: [name for names in joined.values() for name in names],
        }
        rows = [
            self._read(row, decodings)
            for row in self.study.rows.values()
            if any(self._path(row.name).glob("seed*/"))
        ]
        started = {row.name for row in rows}
        page = self.options.page or self.exp_dir / "RESULTS.md"
        commands = (self.exp_dir / "commands.txt").read_text("utf-8").splitlines()
        facts = {
            "machine": describe_machine(self._machine),
            "commands": list(dict.fromkeys(commands)),
            "settings": self._settings(),
        }
        print(
            write_page(
                page,
                rows,
                self.study.reference,
                test,
                {s: names for s, names in joined.items() if names},
                facts,
                [name for name in self.study.rows if name not in started],
            )
        )
        print(f"\nin {page}")

    def _is_prepared(self) -> bool:
        try:
            training = self._prepared_config("training")
        except StudyError:
            return False
        # What its stages write last.
        stats = [Path(training.stats_dir, role, "token_shape") for role in SUBSETS[:2]]
        asked = self.recipe.test_subsets
        return all(path.is_file() for path in stats) and (
            asked is None or asked == self._subsets["test"]
        )

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
        return Settings(device="cuda" if on_gpu else "cpu", threads=self.threads)

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

    def _read(self, row: Row, decodings: Mapping[str, Sequence[str]]) -> RowResult:
        parameters = count_parameters(self._parse(row.name), self._tokens)
        return read_row(self._path(row.name), parameters, decodings)

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
            if changed:
                raise ValueError(
                    f"{self.exp_dir} holds a study with other "
                    f"{', '.join(f'--{name}' for name in changed)}: give it again, or "
                    "another --exp_dir"
                )
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
            if any(path.parent.glob("seed*/")):
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
            *(sys.executable, str(RECIPE_DIR / "run.py"), *command),
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
        """Run stages of run.py for every row and seed that lacks their scores."""
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
                failure = directories[job.log] / FAILURE
                failure.parent.mkdir(parents=True, exist_ok=True)
                failure.unlink(missing_ok=True)
                if status:
                    reason = last_line(job.log) or f"exit status {status}"
                    failure.write_text(reason, encoding="utf-8")
                    print(f"FAILED {job.name}: {reason}", flush=True)

    def _settings(self) -> dict[str, str]:
        config = self.study.rows[self.study.reference].asr_config
        tokens = self.recipe.token_type
        if tokens == "bpe":
            tokens += f", {self.recipe.nbpe}"
        subsets = {role: ", ".join(names) for role, names in self._subsets.items()}
        return {
            "trained on": f"{subsets['train']}; validated on {subsets['valid']}",
            "tokens": tokens,
            "updates": f"{count_updates(config):,}",
            "batch_bins": f"{config['batch_bins']:,}",
            "optimizer": f"{config.get('optim')} {config.get('optim_conf')}, "
            f"{config.get('scheduler')} {config.get('scheduler_conf')}",
            "all encoders": str(self._common_encoder_conf()),
            "decoding": self.options.inference_config.name,
            "CER, WER": "percent; the average of the seeds, and each of them",
            "against the reference": f"CER less that of {self.study.reference}, with "
            "the 95 % interval of a paired bootstrap over utterances",
            "update": "forward and backward of a batch of mean size, without the "
            f"optimizer; threads: {self.threads}",
        }

    def _common_encoder_conf(self) -> dict[str, Any]:
        confs = [row.asr_config["encoder_conf"] for row in self.study.rows.values()]
        reference = self.study.rows[self.study.reference].asr_config["encoder_conf"]
        return {
            key: value
            for key, value in reference.items()
            if all(conf.get(key) == value for conf in confs)
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages that the command line asks for."""
    parser = get_parser()
    options, recipe_command = parser.parse_known_args(argv)
    recipe_parser = run.get_parser()
    recipe, unknown = recipe_parser.parse_known_args(recipe_command)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    for name in OWN_OPTIONS:
        if getattr(recipe, name) != recipe_parser.get_default(name):
            parser.error(f"--{name} is what {options.study} is for")
    # Whoever ends this command ends the trainings with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        runner = Runner(options, recipe, recipe_command)
        runner.check()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    with (runner.exp_dir / "commands.txt").open("a", encoding="utf-8") as file:
        file.write(f"{_describe(sys.argv[1:] if argv is None else argv)}\n")
    try:
        if {"speed", "train"} & set(options.stages):
            runner.prepare()
        for stage in STAGES:
            if stage in options.stages:
                getattr(runner, stage)()
    except (StillRunningError, StudyError) as error:
        raise SystemExit(f"study.py: {error}") from error


def _describe(argv: Sequence[str]) -> str:
    """Return a command without the places that directories have on this machine."""
    arguments = [Path(a).name if os.path.isabs(a) else a for a in argv]
    return shlex.join(["python", "egs/librispeech/study.py", *arguments])


if __name__ == "__main__":
    main()
