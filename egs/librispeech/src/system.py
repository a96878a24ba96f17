"""ESPnet3's ASR system, made to go on from where it was stopped."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from espnet2.bin.tokenize_text import tokenize
from espnet3.components.data import collect_stats as collect_stats_module
from espnet3.systems.base import training as training_module
from espnet3.systems.esp2_asr.inference import ASRInferenceRunner
from espnet3.systems.esp2_asr.system import ASRSystem
from omegaconf import OmegaConf

from .inference import StatsRunner
from .lightning_module import SharedBatchModule
from .report import write_results
from .tokenizer import gather_training_text


class LibriSpeechSystem(ASRSystem):
    """ASR system whose stages can be stopped at any time and run again.

    What is finished is not redone unless its settings have changed, and training goes
    on from its last checkpoint.
    """

    def _has_tokenizer(self) -> bool:
        # The last file that either tokenizer writes.
        return (Path(self.training_config.tokenizer.save_path) / "tokens.txt").is_file()

    def train_tokenizer(self, *args, **kwargs) -> None:
        """Write ``tokens.txt``: characters, or byte pairs trained by SentencePiece."""
        self._reject_stage_args("train_tokenizer", args, kwargs)
        if self._has_tokenizer():
            return
        config = self.training_config.tokenizer
        directory = Path(config.save_path)
        # ESPnet3 refuses to start over with the text of a run that was stopped.
        text = Path(config.train_file)
        text.unlink(missing_ok=True)
        if config.model_type != "char":
            # SentencePiece writes into the working directory before it moves its files.
            with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
                super().train_tokenizer()
            return
        source = {k: v for k, v in config.text_builder.items() if k != "func"}
        directory.mkdir(parents=True, exist_ok=True)
        text.write_text("\n".join(gather_training_text(**source)), encoding="utf-8")
        _write_characters(text, directory / "tokens.txt")

    def collect_stats(self, *args, **kwargs) -> None:
        """Collect the mean and variance of the features, and all lengths."""
        self._reject_stage_args("collect_stats", args, kwargs)
        config = self.training_config
        subsets = [Path(config.stats_dir) / name for name in ("train", "valid")]
        if all((subset / "token_shape").is_file() for subset in subsets):
            return
        _unlock(subsets)
        collect_stats_module.CollectStatsRunner = StatsRunner
        # ESPnet3 removes the normalization from the config, which training needs.
        self.training_config = copy.deepcopy(config)
        try:
            super().collect_stats()
        finally:
            self.training_config = config
        num_tokens = len(Path(config.model.token_list).read_text().splitlines())
        for subset in subsets:
            # As in asr.sh: `numel` batches count a one-hot vector a token.
            shapes = (subset / "text_shape").read_text().splitlines()
            (subset / "token_shape").write_text(
                "".join(f"{shape},{num_tokens}\n" for shape in shapes)
            )

    def train(self, *args, **kwargs) -> None:
        """Train, from the last checkpoint if there is one."""
        self._reject_stage_args("train", args, kwargs)
        checkpoint = _last_checkpoint(self.exp_dir)
        if checkpoint is not None:
            self.training_config.fit = {"ckpt_path": str(checkpoint)}
        training_module.ESPnetLightningModule = SharedBatchModule
        super().train()

    def infer(self, *args, **kwargs) -> None:
        """Recognize the test subsets."""
        self._reject_stage_args("infer", args, kwargs)
        config = self.inference_config
        checkpoint = Path(config.model.asr_model_file)
        if not checkpoint.is_file():
            raise FileNotFoundError(f"{checkpoint}: run the stage train first")
        directory = Path(config.inference_dir)
        subsets = [directory / test.name for test in config.dataset.test]
        made_from = {
            "config": config,
            "checkpoint_mtime_ns": checkpoint.stat().st_mtime_ns,
        }
        text = OmegaConf.to_yaml(OmegaConf.create(made_from), resolve=True)
        record = directory / "made_from.yaml"
        if not record.is_file() or record.read_text(encoding="utf-8") != text:
            for subset in subsets:
                shutil.rmtree(subset, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        record.write_text(text, encoding="utf-8")
        _unlock(subsets)
        super().infer()

    def measure(self, *args, **kwargs) -> dict:
        """Score the recognized text, write and print RESULTS.md."""
        self._reject_stage_args("measure", args, kwargs)
        results = super().measure()
        print(write_results(Path(self.metrics_config.exp_dir)))
        return results

    def pack_model(self, *args, **kwargs) -> Path:
        """Bundle the model with all that ESPnet needs to use it."""
        self._reject_stage_args("pack_model", args, kwargs)
        training_config, inference_config = self.training_config, self.inference_config
        # ESPnet3 bundles only what is below its recipe directory.
        self.training_config = copy.deepcopy(training_config)
        self.training_config.recipe_dir = os.path.commonpath(
            [training_config.exp_dir, training_config.data_dir]
        )
        # Without code of the recipe, the bundle needs nobody's trust.
        self.inference_config = copy.deepcopy(inference_config)
        self.inference_config.runner = {
            "_target_": f"{ASRInferenceRunner.__module__}.ASRInferenceRunner"
        }
        try:
            bundle = super().pack_model()
        finally:
            self.training_config = training_config
            self.inference_config = inference_config
        # ESPnet2 reads this file and knows no interpolation; ESPnet3 has it read from
        # the root of the bundle.
        (config,) = bundle.glob("**/config.yaml")
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace("${recipe_dir}/", ""), encoding="utf-8")
        return bundle


def _last_checkpoint(exp_dir: Path) -> Path | None:
    """Return the checkpoint that training goes on from, if there is one.

    Lightning writes a checkpoint, removes the one before, and then makes ``last.ckpt``
    a link to the new one: a run that is stopped in between leaves no valid link.
    """
    last = exp_dir / "last.ckpt"
    if last.exists():
        return last
    return max(
        exp_dir.glob("step*.ckpt"), key=lambda path: path.stat().st_mtime, default=None
    )


def _unlock(directories: Iterable[Path]) -> None:
    """Remove what keeps ESPnet3 from going on with the work of a killed run."""
    for directory in directories:
        for lock in directory.glob("**/lock"):
            lock.unlink()


def _write_characters(text: Path, tokens: Path) -> None:
    """Write the characters of ``text``, the frequent ones first, as asr.sh does."""
    partial = tokens.with_suffix(".partial")
    tokenize(
        input=str(text),
        output=str(partial),
        field=None,
        delimiter=None,
        token_type="char",
        space_symbol="<space>",
        non_linguistic_symbols=None,
        bpemodel=None,
        log_level="INFO",
        write_vocabulary=True,
        vocabulary_size=0,
        remove_non_linguistic_symbols=False,
        cutoff=0,
        add_symbol=["<blank>:0", "<unk>:1", "<sos/eos>:-1"],
        cleaner=None,
        g2p=None,
        add_nonsplit_symbol=[],
    )
    partial.replace(tokens)
