"""The recipe as a whole, run as its users run it."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from espnet3.publication.inference_model import InferenceModel
from omegaconf import OmegaConf

from .conftest import RECIPE_DIR

CONF_DIR = RECIPE_DIR.parents[1] / "conf"

STAGES = (
    "create_dataset",
    "train_tokenizer",
    "collect_stats",
    "train",
    "infer",
    "measure",
    "pack_model",
)
# Small enough for seconds, and without anything random: Lightning does not restore the
# state of random number generators.
TINY = """\
encoder: {encoder}
encoder_conf:
    output_size: 16
    attention_heads: 2
    linear_units: 16
    num_blocks: 1
    cgmlp_linear_units: 16
    cgmlp_conv_kernel: 3
    dropout_rate: 0.0
    positional_dropout_rate: 0.0
    attention_dropout_rate: 0.0
decoder: transformer
decoder_conf:
    attention_heads: 2
    linear_units: 16
    num_blocks: 1
    dropout_rate: 0.0
    positional_dropout_rate: 0.0
    self_attention_dropout_rate: 0.0
    src_attention_dropout_rate: 0.0
model_conf:
    ctc_weight: 0.3
batch_type: numel
batch_bins: 200000
max_epoch: 1
accum_grad: 2
best_model_criterion:
-   - valid
    - acc
    - max
keep_nbest_models: 2
use_amp: true
optim: adam
optim_conf:
    lr: 0.001
scheduler: steplr
scheduler_conf:
    step_size: 2
"""


# An untrained decoder knows no end.
SHORT_SEARCH = """\
beam_size: 2
ctc_weight: 0.3
lm_weight: 0.0
maxlenratio: -20
"""


class Recipe:
    """run.py with a tiny model on one corpus, everything it writes below ``root``."""

    def __init__(self, root: Path, encoder: str, corpus):
        self.root = root
        self.exp_dir = root / "exp"
        self.asr_config = root / f"tiny_{encoder}.yaml"
        self.asr_config.write_text(TINY.format(encoder=encoder))
        inference_config = root / "decode_short.yaml"
        inference_config.write_text(SHORT_SEARCH)
        self.options = [
            *("--corpus", str(corpus.source_dir)),
            *("--train_subsets", corpus.train),
            *("--valid_subsets", corpus.valid),
            *("--test_subsets", corpus.test),
            *("--asr_config", str(self.asr_config)),
            *("--inference_config", str(inference_config)),
            *("--data_dir", str(root / "data")),
        ]

    def start(self, *options: str, exp: str = "exp") -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, RECIPE_DIR / "run.py", *self.options, *options]
            + ["--exp_dir", str(self.root / exp)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str, exp: str = "exp") -> str:
        process = self.start(*options, exp=exp)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def timestamps(self) -> dict[str, int]:
        """When the files were written that only the stages before infer write."""
        return {
            path.name: path.stat().st_mtime_ns
            for pattern in ("token_list/*/*", "stats_*/*/*")
            for path in self.root.glob(f"data/*/{pattern}")
            if path.suffix != ".log"
        }

    def transcripts(self, decoding: str, subset: str) -> dict[str, str]:
        lines = (self.exp_dir / decoding / subset / "text.scp").read_text().splitlines()
        return {line.split()[0]: line.partition(" ")[2] for line in lines}


def load(checkpoint: Path) -> dict:
    return torch.load(checkpoint, map_location="cpu", weights_only=False)


def read_table(text: str, rate: str) -> dict[str, list[str]]:
    section = text.partition(f"### {rate}\n")[2].partition("###")[0]
    rows = [line.strip("|").split("|") for line in section.strip().splitlines()]
    return {name: columns for name, *columns in (rows[0], *rows[2:])}


@pytest.fixture(scope="module")
def an4_recipe(an4_corpus, tmp_path_factory) -> Recipe:
    """Every stage on AN4, with byte pairs for tokens."""
    recipe = Recipe(tmp_path_factory.mktemp("run"), "fastformer", an4_corpus)
    recipe.options += ["--token_type", "bpe", "--nbpe", "30"]
    recipe.output = recipe.run()
    return recipe


def test_all_stages(an4_recipe, an4_corpus):
    exp_dir = an4_recipe.exp_dir
    for stage in STAGES:
        assert f"=== [DONE] stage: {stage} " in an4_recipe.output
    results = (exp_dir / "RESULTS.md").read_text()
    assert results in an4_recipe.output
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


def test_greedy_ctc_is_a_choice(an4_recipe, an4_corpus):
    config = CONF_DIR / "decode_ctc.yaml"
    before = an4_recipe.timestamps()
    an4_recipe.run("--inference_config", str(config), "--stages", "infer", "measure")
    assert len(an4_recipe.transcripts("decode_ctc", an4_corpus.test)) == 2
    table = read_table((an4_recipe.exp_dir / "RESULTS.md").read_text(), "WER")
    assert list(table)[1:] == [
        f"{decoding}/{an4_corpus.test}" for decoding in ("decode_ctc", "decode_short")
    ]
    assert an4_recipe.timestamps() == before


def test_killed_training_goes_on(synthetic_corpus, tmp_path):
    recipe = Recipe(tmp_path, "aft", synthetic_corpus)
    stages = ("--stages", *STAGES[:4])
    process = recipe.start(*stages, "--max_epoch", "1000")
    while not (recipe.exp_dir / "last.ckpt").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    before = recipe.timestamps()
    done = load(recipe.exp_dir / "last.ckpt")["epoch"] + 1
    options = (*stages, "--max_epoch", str(done + 1))

    output = recipe.run(*options)
    assert "Restored all states" in output
    assert recipe.timestamps() == before
    resumed = load(recipe.exp_dir / "last.ckpt")
    recipe.run(*options, exp="at_once")
    at_once = load(tmp_path / "at_once" / "last.ckpt")
    assert resumed["global_step"] == at_once["global_step"] > done
    for name, weight in resumed["state_dict"].items():
        torch.testing.assert_close(weight, at_once["state_dict"][name])


@pytest.fixture(scope="module")
def main():
    spec = importlib.util.spec_from_file_location("recipe_run", RECIPE_DIR / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


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
    ],
)
def test_options_that_lead_nowhere_are_named(main, options, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(options)
    assert error.value.code == 2
    assert message in capsys.readouterr().err
