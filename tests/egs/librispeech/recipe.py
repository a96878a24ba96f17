"""The recipe with a tiny model, run as its users run it."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .conftest import RECIPE_DIR

STAGES = (
    "create_dataset",
    "train_tokenizer",
    "collect_stats",
    "train",
    "infer",
    "measure",
    "pack_model",
)
PREPARATION = STAGES[:3]
# Small enough for seconds, and without anything random.
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
num_att_plot: 0
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

    def _exp_dir(self, exp: str | None) -> Path:
        return self.exp_dir if exp is None else self.root / exp

    def start(self, *options: str, exp: str | None = None) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, RECIPE_DIR / "run.py", *self.options, *options]
            + ["--exp_dir", str(self._exp_dir(exp))],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str, exp: str | None = None) -> str:
        process = self.start(*options, exp=exp)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def fail(self, *options: str, exp: str | None = None) -> str:
        process = self.start(*options, exp=exp)
        output, _ = process.communicate()
        assert process.returncode not in (0, None), output
        return output

    def curves(self, exp: str | None = None) -> dict[str, dict[int, float]]:
        """What TensorBoard logged, by name and step."""
        curves = defaultdict(dict)
        for file in (self._exp_dir(exp) / "tensorboard").glob("**/events.*"):
            events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
            for name in events.Tags()["scalars"]:
                curves[name].update((e.step, e.value) for e in events.Scalars(name))
        return curves

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
