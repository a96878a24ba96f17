import os
import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .conftest import RECIPE_DIR

CONFIG = """\
encoder: aft
encoder_conf:
    aft_type: conv
    output_size: 16
    attention_heads: 2
    num_blocks: 1
    cgmlp_linear_units: 16
model_conf:
    ctc_weight: 1.0
best_model_criterion:
-   - valid
    - cer_ctc
    - min
batch_type: numel
batch_bins: 200000
max_epoch: 2
"""
LAYER = "encoder.encoders.0.attn"


def train(corpus, root: Path, *options: str) -> None:
    config = root / "train.yaml"
    config.write_text(CONFIG)
    command = [sys.executable, str(RECIPE_DIR / "run.py"), *options]
    command += ["--corpus", str(corpus.source_dir), "--asr_config", str(config)]
    command += ["--train_subsets", corpus.train, "--valid_subsets", corpus.train]
    command += ["--test_subsets", corpus.test]
    for name in ("exp", "data"):
        command += [f"--{name}_dir", str(root / name)]
    stages = ["create_dataset", "train_tokenizer", "collect_stats", "train"]
    done = subprocess.run(
        [*command, "--stages", *stages],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_epoch_is_shown(an4_corpus, tmp_path):
    train(an4_corpus, tmp_path, "--num_att_plot", "2")
    pictures = tmp_path / "exp" / "att_ws"
    names = {
        path.stem
        for path in an4_corpus.source_dir.glob(f"{an4_corpus.train}/*/*/*.sph")
    }
    utterances = [path.name for path in pictures.iterdir()]
    assert len(utterances) == 2 and names.issuperset(utterances)
    kinds = ("key_weights", "position_bias")
    for utterance in utterances:
        assert {path.name for path in (pictures / utterance).iterdir()} == {
            f"{LAYER}.{kind}.{epoch}ep.png" for kind in kinds for epoch in (1, 2)
        }
    (log,) = (tmp_path / "exp" / "tensorboard").glob("**/events.*")
    events = EventAccumulator(str(log)).Reload()
    tags = {f"{LAYER}.{kind}_{name}" for kind in kinds for name in utterances}
    assert set(events.Tags()["images"]) == tags
    for tag in tags:
        assert [image.step for image in events.Images(tag)] == [1, 2]

    train(an4_corpus, tmp_path, "--num_att_plot", "0", "--max_epoch", "3")
    assert not list(pictures.glob("*/*.3ep.png"))
