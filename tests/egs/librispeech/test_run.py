"""The recipe as a whole, run as its users run it."""

import shlex
import shutil
import subprocess
from pathlib import Path

import espnet
import numpy as np
import pytest
import soundfile
import torch
import yaml
from espnet3.publication.inference_model import InferenceModel
from omegaconf import OmegaConf

from tests.environment import Environment

from .conftest import RECIPE_DIR
from .recipe import STAGES, Recipe, load

CONF_DIR = RECIPE_DIR.parents[1] / "conf"
TRANSDUCER = str(CONF_DIR / "train_asr_transducer_aft.yaml")
DURATIONS = "transducer_multi_blank_durations"


def read_table(text: str, rate: str) -> dict[str, list[str]]:
    section = text.partition(f"### {rate}\n")[2].partition("###")[0]
    rows = [line.strip("|").split("|") for line in section.strip().splitlines()]
    return {name: columns for name, *columns in (rows[0], *rows[2:])}


@pytest.fixture(scope="module")
def an4_recipe(an4_corpus, tmp_path_factory) -> Recipe:
    """Every stage on AN4, with byte pairs for tokens, where names are odd."""
    root = tmp_path_factory.mktemp("run") / "-a, [b]\t{c}=$d %e #f'\"ü"
    root.mkdir()
    recipe = Recipe(root, "fastformer", an4_corpus)
    recipe.exp_dir = root / "v0.1"
    recipe.options += ["--token_type", "bpe", "--nbpe", "30"]
    recipe.output = recipe.run()
    return recipe


def test_all_stages(an4_recipe, an4_corpus):
    exp_dir = an4_recipe.exp_dir
    for stage in STAGES:
        assert f"=== [DONE] stage: {stage} " in an4_recipe.output
    results = (exp_dir / "RESULTS.md").read_text()
    assert results[results.index("### WER") :] in an4_recipe.output
    assert str(RECIPE_DIR / "run.py") in results
    for rate in ("WER", "CER"):
        table = read_table(results, rate)
        header = table.pop("dataset")
        assert header == ["Snt", "Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err"]
        assert list(table) == [f"decode_short/{an4_corpus.test}"]
        row = dict(zip(header, table[f"decode_short/{an4_corpus.test}"], strict=True))
        assert row["Snt"] == "2"
        correct, sub, delete, insert, error = (
            float(row[name]) for name in ("Corr", "Sub", "Del", "Ins", "Err")
        )
        assert correct + sub + delete == pytest.approx(100, abs=0.2)
        assert sub + delete + insert == pytest.approx(error, abs=0.2)
    references = exp_dir / "decode_short" / an4_corpus.test / "dataset" / "text.scp"
    texts = [line.partition(" ")[2] for line in references.read_text().splitlines()]
    assert sum(len(text.split()) for text in texts) == int(
        read_table(results, "WER")[f"decode_short/{an4_corpus.test}"][1]
    )
    espnet3 = OmegaConf.load(exp_dir / "config.yaml")
    assert espnet3.optimizer == {"_target_": "torch.optim.adam.Adam", "lr": 0.001}
    assert (exp_dir / "training_curves.png").stat().st_size
    assert list((exp_dir / "tensorboard").glob("**/events.*"))
    assert list((exp_dir / "model_pack").glob("**/RESULTS.md"))
    # After the check of the corpus, and beside the results.
    warning = f"{an4_corpus.valid}: 24.1% of the letters of its transcripts"
    assert an4_recipe.output.count(warning) == 2


def test_console_says_what_users_need(an4_recipe, an4_corpus):
    output = an4_recipe.output
    assert "\r" not in output and "litlogger" not in output
    for role, subset, number in (
        ("train", an4_corpus.train, 4),
        ("valid", an4_corpus.valid, 1),
        ("test", an4_corpus.test, 2),
    ):
        assert f" {role}: {subset}, {number} utterances, 0.00 hours\n" in output
    assert "epoch_summary:1epoch:" in output and "Epoch 0" not in output
    results, transcribe = output.splitlines()[-2:]
    assert results == f"Results: {an4_recipe.exp_dir / 'RESULTS.md'}"
    command = shlex.split(transcribe.partition(": ")[2])
    assert command[1:] == ["transcribe", "--exp", str(an4_recipe.exp_dir), "FILE"]
    (audio,) = an4_corpus.source_dir.glob(f"{an4_corpus.valid}/*/*/*.sph")
    subprocess.run([*command[:-1], audio], check=True)


def test_epochs_are_counted_from_one(an4_recipe):
    assert list(an4_recipe.exp_dir.glob("epoch1_step*_valid.acc.ckpt"))
    assert set(an4_recipe.curves()["epoch"].values()) == {1.0}


def test_packed_model_says_how_to_install_what_it_needs(an4_recipe):
    text = (an4_recipe.exp_dir / "model_pack" / "README.md").read_text()
    assert "pip install" in text and "espnet-fastformer" in text
    assert "### WER" in text
    assert "$" not in text and str(an4_recipe.root.parent) not in text


@pytest.mark.parametrize(("stage", "first"), [("train", "train_tok"), ("infer", "tra")])
def test_stage_that_comes_too_early_names_the_first(an4_corpus, tmp_path, stage, first):
    recipe = Recipe(tmp_path, "fastformer", an4_corpus)
    output = recipe.fail("--stages", "measure", stage)
    assert f" is not there yet: run the stage {first}" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_packed_model_recognizes_the_same(an4_recipe, an4_corpus, dataset_module):
    # Not where the config files of the experiment say it is.
    bundle = an4_recipe.root / "elsewhere"
    (an4_recipe.exp_dir / "model_pack").rename(bundle)
    recognize = InferenceModel.from_packed(bundle)
    (data_dir,) = (an4_recipe.root / "data").iterdir()
    dataset = dataset_module.Dataset(
        split=an4_corpus.test, source_dir=an4_corpus.source_dir, data_dir=data_dir
    )
    texts = [recognize(item["speech"])["text"] for item in dataset]
    transcripts = an4_recipe.transcripts("decode_short", an4_corpus.test)
    assert texts == list(transcripts.values())


@pytest.fixture(scope="module")
def archive(an4_recipe) -> Path:
    """What ESPnet2 loads, away from the files that it was packed from."""
    (archive,) = an4_recipe.exp_dir.glob("*.zip")
    return archive.rename(an4_recipe.root / "elsewhere.zip")


def test_packed_model_for_espnet2(
    an4_recipe, an4_corpus, archive, dataset_module, tmp_path, monkeypatch
):
    # Archives are unpacked there.
    monkeypatch.setenv("HOME", str(tmp_path))
    data = an4_recipe.root / "data"
    dataset = dataset_module.Dataset(
        split=an4_corpus.test,
        source_dir=an4_corpus.source_dir,
        data_dir=next(data.iterdir()),
    )
    data.rename(an4_recipe.root / "hidden")
    try:
        search = {"beam_size": 2, "ctc_weight": 0.3, "maxlenratio": -20}
        recognize = espnet.load(str(archive), task="asr", device="cpu", **search)
    finally:
        (an4_recipe.root / "hidden").rename(data)
    texts = [recognize(item["speech"])[0][0] for item in dataset]
    transcripts = an4_recipe.transcripts("decode_short", an4_corpus.test)
    assert texts == list(transcripts.values())


def test_packed_model_names_the_package_that_it_needs(archive, tmp_path):
    environment = Environment(tmp_path / "without")
    assert environment.our_files() == set()
    loading = f"import espnet; espnet.load({str(archive)!r}, task='asr')"
    done = environment.run("-c", loading, HOME=str(tmp_path))
    assert done.returncode == 1
    assert "--encoder must be one of" in done.stderr
    assert done.stderr.endswith(": --encoder espnet-fastformer:fastformer\n")
    environment.run("-m", "zipfile", "-e", str(archive), str(tmp_path / "files"))
    (config,) = (tmp_path / "files").glob("**/config.yaml")
    assert "\nencoder: espnet-fastformer:fastformer\n" in config.read_text()


def test_training_starts_from_another_model(an4_recipe):
    init_param = an4_recipe.exp_dir / "valid.acc.ave.pth"
    options = ("--stages", "train", "--optim_conf", "lr=0.0")
    an4_recipe.run(*options, "--init_param", str(init_param), exp="tuned")
    before = load(init_param)
    after = load(an4_recipe.root / "tuned" / "last.ckpt")["state_dict"]
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight)


def test_training_does_not_go_on_with_other_settings(an4_recipe):
    last = an4_recipe.exp_dir / "last.ckpt"
    before = last.resolve().stat().st_mtime_ns
    options = ("--stages", "train", "--max_epoch", "2", "--num_workers", "0")
    output = an4_recipe.fail(*options, "--optim_conf", "lr=0.002")
    message = f"run.py: {last} was trained with other settings: "
    assert f"{message}optimizer.lr (0.001 before, 0.002 now). Give" in output
    assert last.resolve().stat().st_mtime_ns == before
    assert "0.002" not in (an4_recipe.exp_dir / "commands.txt").read_text()


def test_finished_decoding_is_not_redone(an4_recipe, an4_corpus):
    directory = an4_recipe.exp_dir / "decode_short"
    done = directory / an4_corpus.test / "split.0" / "done"
    before = done.stat().st_mtime_ns
    average = (an4_recipe.exp_dir / "valid.acc.ave.pth").stat().st_mtime_ns
    subsets = ("--test_subsets", an4_corpus.test, an4_corpus.valid)
    an4_recipe.run("--stages", "train", "infer", *subsets)
    assert len(an4_recipe.transcripts("decode_short", an4_corpus.valid)) == 1
    assert (an4_recipe.exp_dir / "valid.acc.ave.pth").stat().st_mtime_ns != average
    assert done.stat().st_mtime_ns == before


def test_results_keep_what_was_decoded_before(an4_recipe, an4_corpus):
    subset = ("--test_subsets", an4_corpus.valid)
    an4_recipe.run("--stages", "infer", "measure", *subset)
    results = (an4_recipe.exp_dir / "RESULTS.md").read_text()
    assert shlex.join(subset) in results
    assert read_table(results, "WER").keys() >= {
        f"decode_short/{name}" for name in (an4_corpus.test, an4_corpus.valid)
    }


def test_options_that_lightning_follows_otherwise(an4_recipe):
    config = yaml.safe_load(an4_recipe.asr_config.read_text())
    del config["best_model_criterion"], config["scheduler_conf"]
    config["scheduler"] = "reducelronplateau"
    path = an4_recipe.root / "plateau.yaml"
    path.write_text(yaml.safe_dump(config))
    options = ("--asr_config", str(path), "--stages", "train", "--max_epoch", "2")
    output = an4_recipe.run(*options, exp="plateau")
    exp_dir = an4_recipe.root / "plateau"
    # One step an epoch, the last one too.
    (scheduler,) = load(exp_dir / "last.ckpt")["lr_schedulers"]
    assert scheduler["last_epoch"] == 2
    assert "best_model_criterion: train/loss, train/acc left out" in output
    averages = {path.name for path in exp_dir.glob("*.ave.pth")}
    assert averages == {"valid.acc.ave.pth", "valid.loss.ave.pth"}
    inference = OmegaConf.load(exp_dir / "conf" / "decode_short.yaml")
    assert inference.model.asr_model_file == str(exp_dir / "valid.acc.ave.pth")


def test_nothing_is_trained_on_a_broken_corpus(an4_corpus, tmp_path):
    corpus = an4_corpus._replace(source_dir=tmp_path / "corpus")
    shutil.copytree(an4_corpus.source_dir, corpus.source_dir)
    chapter = corpus.source_dir / corpus.train / "fash" / "1"
    faults = {
        "0 samples": np.zeros(0),
        "767 samples, should be 768 or more": np.zeros(767),
        "2 channels, should be 1": np.zeros((16000, 2)),
        "57600000 samples, should be 300 s or less: cut it up": np.zeros(57600000),
    }
    names = [f"fash-1-{number:04d}" for number in range(2, 2 + len(faults))]
    with (chapter / "fash-1.trans.txt").open("a") as transcript:
        for name, samples in zip(names, faults.values(), strict=True):
            soundfile.write(chapter / f"{name}.wav", samples, 16000)
            transcript.write(f"{name} STOP\n")
    recipe = Recipe(tmp_path, "aft", corpus)
    output = recipe.fail()
    for name, fault in zip(names, faults, strict=True):
        assert f"{chapter / name}.wav: {fault}" in output
    assert not list(tmp_path.glob("data/*/token_list"))
    assert not list(recipe.exp_dir.glob("*.ckpt"))


def test_greedy_ctc_is_a_choice(an4_recipe, an4_corpus):
    config = CONF_DIR / "decode_ctc.yaml"
    before = an4_recipe.timestamps()
    an4_recipe.run("--inference_config", str(config), "--stages", "infer", "measure")
    assert len(an4_recipe.transcripts("decode_ctc", an4_corpus.test)) == 2
    table = read_table((an4_recipe.exp_dir / "RESULTS.md").read_text(), "WER")
    assert table.keys() >= {
        f"{decoding}/{an4_corpus.test}" for decoding in ("decode_ctc", "decode_short")
    }
    assert an4_recipe.timestamps() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--no_such_option", "1"], "--no_such_option"),
        (["--sharded_ddp", "true"], "sharded_ddp"),
        (["--encoder", "conformer"], "--encoder"),
        (["--encoder", "aft", "--asr_config", "train.yaml"], "not allowed with"),
        (["--corpus", "nowhere"], "--corpus nowhere: no such directory"),
        (["--corpus", "."], "needs --train_subsets, --valid_subsets, --test_subsets"),
        (["--stages", "upload_model"], "--stages"),
        (["--ngpu", "1", "--nproc", "2"], "--nproc is for training on a CPU"),
        (["--exp_tag", "a${HOME}"], "cannot hold a name with '${' in it"),
        (["--exp_tag", "a\nb"], "cannot hold a name with '\\n' in it"),
        (["--exp_tag", "a" * 252], "252 bytes are too many, give 251 at most"),
        (["--asr_config", TRANSDUCER, "--ngpu", "0"], "this loss for GPUs only"),
        (
            [*("--asr_config", TRANSDUCER), "--model_conf", f"{DURATIONS}=[]"],
            f"model_conf: {DURATIONS} in {TRANSDUCER} is empty",
        ),
        (["--init_param", "nothing.pth:encoder"], "there is no file nothing.pth"),
    ],
)
def test_options_that_lead_nowhere_are_named(main, options, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(options)
    assert error.value.code == 2
    assert message in capsys.readouterr().err
