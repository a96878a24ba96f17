"""The study as a whole, run as its users run it."""

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from benchmarks.study import __main__ as module
from benchmarks.study import runner
from benchmarks.study.results import read_speed
from tests.egs.librispeech.recipe import load
from tests.environment import ROOT

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "benchmarks.study"]
REFERENCE, LOCAL = "e_branchformer-rel_selfattn", "local-interctc"
STUDY = f"""\
reference: {REFERENCE}
tolerance: 0.03
asr_config:
    encoder_conf:
        output_size: 16
        attention_heads: 2
        num_blocks: 2
        input_layer: conv2d
    model_conf:
        ctc_weight: 1.0
    normalize: utterance_mvn
    batch_type: numel
    batch_bins: 50000
    max_epoch: 2
    num_iters_per_epoch: 1
    best_model_criterion:
    -   - valid
        - cer_ctc
        - min
    keep_nbest_models: 1
    num_att_plot: 0
    optim: adam
    optim_conf:
        lr: 0.001
    scheduler: tristagelr
    scheduler_conf:
        max_steps: 2
anchors:
    block: &block
        use_ffn: true
        cgmlp_linear_units: 16
        cgmlp_conv_kernel: 3
rows:
    comparison:
        {REFERENCE}:
            encoder: e_branchformer
            encoder_conf:
                <<: *block
                linear_units: 128
                attention_layer_type: rel_selfattn
                pos_enc_layer_type: rel_pos
        {LOCAL}:
            encoder: mixed
            encoder_conf:
                <<: *block
                mixers: [none]
                interctc_layer_idx: [1]
                interctc_use_conditioning: true
            model_conf:
                interctc_weight: 0.3
    time:
        fastformer-time:
            encoder: fastformer
            encoder_conf: *block
            time_of: {REFERENCE}
"""


class Study:
    """A study on one corpus, everything it writes below ``root``."""

    def __init__(self, root: Path, corpus):
        self.root = root
        self.exp_dir = root / "exp"
        self.page = root / "docs" / "accuracy.md"
        self.file = root / "study.yaml"
        self.file.write_text(STUDY)
        self.test = corpus.test
        self.options = [
            *("--study", str(self.file), "--exp_dir", str(self.exp_dir)),
            *("--corpus", str(corpus.source_dir), "--data_dir", str(root / "data")),
            *("--train_subsets", corpus.train, "--valid_subsets", corpus.valid),
            *("--test_subsets", corpus.test, "--page", str(self.page)),
        ]

    def run(self, *options: str) -> str:
        done = self.start(*options)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(self, *options: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*COMMAND, *self.options, *options],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def results(self) -> dict[str, dict]:
        content = json.loads(self.page.with_suffix(".json").read_text())
        return {row["name"]: row for row in content["rows"]}

    def written(self) -> dict[Path, int]:
        files = self.exp_dir.glob("*/seed0/**/*")
        return {path: path.stat().st_mtime_ns for path in files if path.is_file()}


@pytest.fixture(scope="module")
def study(an4_corpus, tmp_path_factory) -> Study:
    """Both rows, one of which cannot write its files."""
    study = Study(tmp_path_factory.mktemp("study"), an4_corpus)
    obstacle = study.exp_dir / LOCAL / "seed0" / "conf"
    obstacle.parent.mkdir(parents=True)
    obstacle.touch()
    joined = ("--joined_seconds", "4", "--pooling_windows", "2")
    study.output = study.run("--jobs", "2", *joined)
    study.first = study.results()
    study.first_page = study.page.read_text()
    return study


def test_ctrl_c_ends_the_trainings_and_fails_none(an4_corpus, tmp_path):
    study = Study(tmp_path, an4_corpus)
    process = subprocess.Popen(
        [*COMMAND, *study.options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # As of a terminal, which sends SIGINT to all of a group.
        start_new_session=True,
    )
    log = study.exp_dir / "prepare.log"
    while "[START] stage: collect_stats" not in (
        log.read_text() if log.exists() else ""
    ):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert output.endswith(
        "\nStopped before its first stage. Give the same command again to go on.\n"
    )
    assert "Traceback" not in output and "Traceback" not in log.read_text()
    # Nothing holds the log of a command that has ended.
    with log.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_trained_row(study):
    row = study.first[REFERENCE]
    joined = f"{study.test}-4s"
    windows = f"{joined}, windows of 2 s"
    apart = f"{study.test}, decode_best_path"
    assert row["scores"].keys() == {study.test, apart, joined, windows}
    seed = study.exp_dir / REFERENCE / "seed0"
    for name, decoding, subset in (
        (study.test, "decode_ctc", study.test),
        (apart, "decode_best_path", study.test),
        (joined, "decode_best_path-joined", joined),
        (windows, "decode_best_path-joined-windows_2s", joined),
    ):
        scored = json.loads((seed / decoding / "metrics.json").read_text())
        for metric, rates in scored.items():
            rate = metric.rpartition(".")[2]
            assert row["scores"][name][rate] == pytest.approx(
                rates[subset][f"{rate}_Err"], abs=0.051
            )
    assert load(seed / "last.ckpt")["global_step"] == row["updates"] == 2
    assert list(row["curve"].values())[-1] > 0
    assert row["update_seconds"] > 0
    assert row["update_memory"] > 0
    assert row["real_time_factor"].keys() == {"15", "120"}
    assert row["scores"][study.test]["CER_difference"] is None


def test_models_are_equally_large(study):
    sizes = [row["parameters"] for row in study.first.values()]
    assert len(sizes) == 2
    assert max(sizes) < 1.03 * min(sizes)
    conf = study.first[LOCAL]["config"]["encoder_conf"]
    assert conf["linear_units"] > 128


def test_every_row_is_measured(study):
    assert all(row["update_seconds"] > 0 for row in study.first.values())


def test_failed_row_says_so_and_the_others_go_on(study):
    row = study.first[LOCAL]
    assert row["scores"] == {}
    assert "conf" in row["failures"]["0"]
    assert f"FAILED {LOCAL}, seed 0" in study.output
    section = study.first_page.partition(f"### {study.test}\n")[2].partition("###")[0]
    (line,) = [line for line in section.splitlines() if f"| {LOCAL} |" in line]
    assert "failed" in line
    assert "fastformer-time" in study.first_page.partition("### Not trained")[2]
    # Directories of this machine are nobody's business.
    assert str(study.root) not in study.first_page.partition("### Failed")[0]


def test_goes_on_where_it_was(study, an4_corpus):
    (study.exp_dir / LOCAL / "seed0" / "conf").unlink()
    study.page.write_text(f"before\n{study.first_page}after\n")
    before = study.written()
    study.run("--jobs", "2")
    after = study.written()
    assert {p: after[p] for p in before if REFERENCE in p.parts} == {
        p: before[p] for p in before if REFERENCE in p.parts
    }
    row = study.results()[LOCAL]
    assert row["failures"] == {}
    difference = row["scores"][study.test]["CER_difference"]
    rates = [
        study.results()[r]["scores"][study.test]["CER"] for r in (LOCAL, REFERENCE)
    ]
    assert difference["value"] == pytest.approx(rates[0] - rates[1])
    assert difference["low"] <= difference["value"] <= difference["high"]
    page = study.page.read_text()
    assert page.startswith("before\n") and page.endswith("after\n")
    assert (study.page.parent / "images" / "accuracy.png").is_file()


def test_tables_against_another_row(study, tmp_path, capsys):
    page = tmp_path / "accuracy.md"
    command = [*study.options, "--page", str(page), "--stages", "report", "--against"]
    module.main([*command, LOCAL])
    rows = json.loads(page.with_suffix(".json").read_text())["rows"]
    scores = {row["name"]: row["scores"][study.test] for row in rows}
    assert scores[LOCAL]["CER_difference"] is None
    assert scores[REFERENCE]["CER_difference"]["value"] == pytest.approx(
        scores[REFERENCE]["CER"] - scores[LOCAL]["CER"]
    )
    with pytest.raises(SystemExit):
        module.main([*command, "nobody"])
    assert "--against nobody: there is no such row" in capsys.readouterr().err


def test_part_of_a_study_says_how_to_run_the_rest(study, tmp_path):
    """One seed of two rows is finished, and another one of the second begun."""
    page = tmp_path / "accuracy.md"
    begun = study.exp_dir / LOCAL / "seed1"
    begun.mkdir()
    try:
        module.main([*study.options, "--page", str(page), "--stages", "report"])
    finally:
        begun.rmdir()
    text = page.read_text()
    content = json.loads(page.with_suffix(".json").read_text())
    assert [row["name"] for row in content["rows"]] == [REFERENCE, LOCAL]
    finished, _, not_run = text.partition("### Not trained")
    assert "not finished" not in finished
    missing = {tuple(m["seeds"]): m for m in content["not_run"]}
    assert missing.keys() == {(0,), (1,)}
    for seeds, rows, choice in (
        ((0,), ["fastformer-time"], ["time"]),
        ((1,), [LOCAL], [LOCAL]),
    ):
        assert missing[seeds]["rows"] == rows
        command = missing[seeds]["command"]
        assert f"\n{command}\n" in not_run
        assert str(study.root) not in command
        options, recipe = module.get_parser().parse_known_args(shlex.split(command)[3:])
        assert tuple(options.seeds) == seeds
        assert options.rows == choice
        assert tuple(options.stages) == module.STAGES
        assert module.run.get_parser().parse_args(recipe).test_subsets == [study.test]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "lstm"], "there is no row or group 'lstm'"),
        (["--asr_config", "train.yaml"], "--asr_config is what"),
        (["--max_hours", "1"], "--max_hours is what"),
        (["--page", __file__], "test_study.py lacks the lines <!-- study -->"),
        (["--max_epoch", "3"], "unrecognized arguments: --max_epoch 3"),
        (["--study", "nothing.yaml"], "nothing.yaml"),
        (["--speed_perturb_factors", "0.9", "1.0"], "other --speed_perturb_factors"),
    ],
)
def test_options_that_lead_nowhere_are_named(study, options, message, capsys):
    with pytest.raises(SystemExit) as error:
        module.main([*study.options, *options])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_settings_cannot_change_between_rows(study, capsys):
    study.file.write_text(STUDY.replace("lr: 0.001", "lr: 0.1"))
    try:
        with pytest.raises(SystemExit):
            module.main(study.options)
    finally:
        study.file.write_text(STUDY)
    message = f"{REFERENCE} was trained with other optim_conf"
    assert message in capsys.readouterr().err


def test_unequal_models_are_refused(study, tmp_path, capsys):
    unequal = STUDY.replace(
        "interctc_layer_idx: [1]",
        "interctc_layer_idx: [1]\n                linear_units: 8",
    )
    study.file.write_text(unequal)
    try:
        with pytest.raises(SystemExit):
            module.main([*study.options, "--exp_dir", str(tmp_path)])
    finally:
        study.file.write_text(STUDY)
    error = capsys.readouterr().err
    assert f"by more than 3% from {REFERENCE}: {LOCAL}" in error


def test_time_instead_of_updates(study, monkeypatch):
    reference, directory = study.exp_dir / REFERENCE, study.exp_dir / "fastformer-time"
    config = directory / "train.yaml"
    done = study.start("--rows", "time", "--stages", "train")
    assert "fastformer-time: the stage speed has not measured it" in done.stdout
    before = (reference / "speed.json").stat().st_mtime_ns
    output = study.run("--rows", "time", "--stages", "speed")
    # Both in the same call.
    assert f"measure {REFERENCE}, fastformer-time" in output
    assert (reference / "speed.json").stat().st_mtime_ns > before
    measured = {path.name: read_speed(path).results for path in (reference, directory)}
    theirs, own = (results[0].median for results in measured.values())
    given = yaml.safe_load(config.read_text())
    epochs = max(1, round(2 * theirs / own))
    assert given["max_epoch"] == given["scheduler_conf"]["max_steps"] == epochs
    # What has begun keeps its length, whatever is measured later.
    (directory / "seed0").mkdir()
    given["max_epoch"] = given["scheduler_conf"]["max_steps"] = 7
    config.write_text(yaml.safe_dump(given, sort_keys=False))
    (directory / "speed.json").unlink()
    monkeypatch.setattr(runner, "measure_rows", lambda *_: measured)
    module.main([*study.options, "--rows", "time", "--stages", "speed"])
    assert (directory / "speed.json").is_file()
    assert yaml.safe_load(config.read_text()) == given


def test_joined_lengths_are_added(study):
    """Scores of the length before stay, and half a training is not scored."""
    begun = study.exp_dir / LOCAL / "seed2"
    begun.mkdir()
    (begun / "valid.cer_ctc.ave.pth").touch()
    options = ("--seeds", "0", "2", "--stages", "joined", "report")
    study.run(*options, "--joined_seconds", "6")
    begun_has = [path.name for path in begun.iterdir()]
    shutil.rmtree(begun)
    assert begun_has == ["valid.cer_ctc.ave.pth"]
    scores = study.results()[REFERENCE]["scores"]
    assert {f"{study.test}-4s", f"{study.test}-6s"} <= scores.keys()
