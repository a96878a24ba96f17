"""ESPnet3's ASR system, made to go on from where it was stopped.

ESPnet3 keeps, repeats or refuses what is there, whatever that was made from.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from espnet2.fileio.read_text import read_2columns_text
from espnet2.main_funcs.pack_funcs import pack
from espnet2.samplers.build_batch_sampler import build_batch_sampler
from espnet3.components.callbacks import default_callbacks
from espnet3.components.data import collect_stats as collect_stats_module
from espnet3.components.data.dataset_module import load_dataset_module
from espnet3.systems.base import training as training_module
from espnet3.systems.esp2_asr.inference import ASRInferenceRunner
from espnet3.systems.esp2_asr.src.tokenizers.sentencepiece import train_sentencepiece
from espnet3.systems.esp2_asr.system import ASRSystem
from espnet3.utils import publication_utils
from espnet3.utils.task_utils import save_espnet_config
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

import espnet_fastformer
from espnet_fastformer.registration import ENCODERS, qualified_name

from .callbacks import AverageCheckpoints
from .compare_subsets import compare_subsets
from .configs import digest, lasting_settings, write_at_once
from .inference import StatsRunner
from .lightning_module import SharedBatchModule
from .report import (
    MADE_FROM,
    error_rates,
    plot_training_curves,
    record_command,
    write_results,
)

logger = logging.getLogger(__name__)

# What ESPnet3 writes of a SentencePiece model. The tokens tell that all is there.
BYTE_PAIRS = ("bpe.model", "bpe.vocab", "tokens.txt")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LibriSpeechSystem(ASRSystem):
    """ASR system whose stages can be stopped at any time and run again.

    What is finished is not redone unless its settings have changed, and training goes
    on from its last checkpoint.
    """

    def create_dataset(self) -> None:
        """Make or find the corpus, check it and say what there is of it."""
        super().create_dataset()
        config = self.training_config
        roles = {
            "train": config.dataset.train,
            "valid": config.dataset.valid,
            "test": self.inference_config.dataset.test,
        }
        for role, datasets in roles.items():
            for dataset in datasets:
                utterances = _utterances(config, [dataset])
                samples = sum(utterance.num_samples for utterance in utterances)
                hours = samples / config.dataset.preprocessor.fs / 3600
                logger.info(
                    "%s: %s, %s utterances, %.2f hours",
                    *(role, dataset.name, f"{len(utterances):,}", hours),
                )
        self._compare_subsets()

    def _compare_subsets(self) -> None:
        config = self.training_config
        heard = _utterances(config, config.dataset.train)
        compared = [*config.dataset.valid, *self.inference_config.dataset.test]
        others = {data.name: _utterances(config, [data]) for data in compared}
        for warning in compare_subsets(heard, others):
            logger.warning(warning)

    def _require(self, stage: str, *files: str | Path) -> None:
        """Raise FileNotFoundError if there is not yet what a stage makes."""
        source = self.training_config.create_dataset
        dataset_module = load_dataset_module(recipe_dir=self.training_config.recipe_dir)
        if not dataset_module.DatasetBuilder().is_source_prepared(**source):
            files, stage = [source.source_dir], "create_dataset"
        for file in map(Path, files):
            if not file.is_file():
                raise FileNotFoundError(
                    f"{file} is not there yet: run the stage {stage} first"
                )

    def _has_tokenizer(self) -> bool:
        # The last file that either tokenizer writes.
        return (Path(self.training_config.tokenizer.save_path) / "tokens.txt").is_file()

    def train_tokenizer(self) -> None:
        """Write ``tokens.txt``: characters, or byte pairs trained by SentencePiece."""
        self._require("create_dataset")
        utterances = _utterances(
            self.training_config, self.training_config.dataset.train
        )
        new_text = "\n".join(utterance.text for utterance in utterances)
        config = self.training_config.tokenizer
        directory = Path(config.save_path)
        text = directory / "train.txt"
        if self._has_tokenizer() and text.is_file():
            if text.read_text(encoding="utf-8") == new_text:
                return
        # What is there is of another corpus or of a run that was stopped. The tokens go
        # last: they are nothing without their text.
        for name in (text.name, *BYTE_PAIRS):
            (directory / name).unlink(missing_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        text.write_text(new_text, encoding="utf-8")
        if config.model_type == "char":
            _write_characters(new_text, directory / "tokens.txt")
            return
        partial = directory / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        # ESPnet3 moves what SentencePiece writes from the working directory.
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            # SentencePiece takes a comma for the end of a name.
            Path(text.name).symlink_to(text)
            try:
                train_sentencepiece(text.name, partial, config.vocab_size)
            except RuntimeError as error:
                raise ValueError(f"--nbpe {config.vocab_size}: {error}") from error
        for name in BYTE_PAIRS:
            (partial / name).replace(directory / name)
        partial.rmdir()

    def collect_stats(self) -> None:
        """Collect the mean and variance of the features, and all lengths."""
        config = self.training_config
        self._require("train_tokenizer", config.model.token_list)
        subsets = [Path(config.stats_dir) / name for name in ("train", "valid")]
        for subset in subsets:
            utterances = _utterances(config, config.dataset[subset.name])
            _discard_unless_made_from(subset, {"utterances": digest(utterances)})
        if all((subset / "token_shape").is_file() for subset in subsets):
            return
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
            lines = "".join(f"{shape},{num_tokens}\n" for shape in shapes)
            write_at_once(lines, subset / "token_shape")

    def train(self) -> None:
        """Train, from the last checkpoint if there is one."""
        config = self.training_config
        self._require("train_tokenizer", config.model.token_list)
        shapes = [
            f"{config.stats_dir}/{name}/token_shape" for name in ("train", "valid")
        ]
        self._require("collect_stats", *shapes)
        check_shared_memory(config)
        checkpoint = _last_checkpoint(self.exp_dir)
        _refuse_other_settings(self.training_config, checkpoint)
        if checkpoint is not None:
            self.training_config.fit = {"ckpt_path": str(checkpoint)}
            _check_space(self.exp_dir, checkpoint)
        default_callbacks.AverageCheckpointsCallback = AverageCheckpoints
        training_module.ESPnetLightningModule = SharedBatchModule
        training_module.save_espnet_config = _save_config
        with _explain_full_disk(self.exp_dir):
            super().train()
            if rank_zero_only.rank == 0:
                plot_training_curves(self.exp_dir)

    def infer(self) -> None:
        """Recognize the test subsets."""
        config = self.inference_config
        checkpoint = Path(config.model.asr_model_file)
        self._require("train", checkpoint)
        directory = Path(config.inference_dir)
        subsets = [directory / test.name for test in config.dataset.test]
        settings = OmegaConf.to_container(config, resolve=True)
        with checkpoint.open("rb") as file:
            # Not its time: at the end of each training, it is written again.
            weights = hashlib.file_digest(file, "sha256").hexdigest()
        for subset, test in zip(subsets, settings.pop("dataset")["test"], strict=True):
            made_from = {
                "checkpoint": weights,
                "config": {**settings, "dataset": test},
                "utterances": digest(_utterances(config, [test])),
            }
            if _discard_unless_made_from(subset, made_from):
                # They are scores of what is no more.
                (directory / "metrics.json").unlink(missing_ok=True)
        super().infer()

    def measure(self) -> dict:
        """Score the recognized text and write RESULTS.md."""
        config = self.metrics_config
        texts = [
            f"{config.inference_dir}/{t.name}/text.scp" for t in config.dataset.test
        ]
        self._require("infer", *texts)
        # Those decoded before, too, with the same model.
        names = [test.name for test in config.dataset.test]
        directory = Path(config.inference_dir)
        checkpoint, others = _find_decoded_alike(directory, names)
        config.dataset.test += others
        # Their texts are looked up there.
        self.inference_config.dataset.test += others
        results = super().measure()
        record_command(self.exp_dir)
        write_results(self.exp_dir, checkpoint)
        # It is what these numbers have to be read with.
        self._compare_subsets()
        return results

    def pack_model(self) -> Path:
        """Bundle the model with all that ESPnet needs to use it."""
        self._require("train", self.publication_config.pack_model.files.asr_model_file)
        config = self.training_config
        # ESPnet3 bundles only what is below its recipe directory.
        config.recipe_dir = os.path.commonpath([config.exp_dir, config.data_dir])
        # Without code of the recipe, the bundle needs nobody's trust.
        self.inference_config.runner = {
            "_target_": f"{ASRInferenceRunner.__module__}.ASRInferenceRunner"
        }
        self.publication_config.pack_model.readme_context = {
            "exp_tag": config.exp_tag,
            "fs": config.dataset.preprocessor.fs,
            "espnet": version("espnet"),
            "version": espnet_fastformer.__version__,
            "trained_on": ", ".join(data.name for data in config.dataset.train),
            "results": error_rates(self.exp_dir),
        }
        # The directory of an experiment is no pattern, whatever its name.
        publication_utils.has_magic = lambda path: False
        bundle = super().pack_model()
        _write_requirement(bundle)
        archive = bundle.with_name(f"{self.exp_dir.name}.zip")
        _pack_for_espnet2(bundle, archive)
        logger.info("packed: %s, %s", archive, bundle)
        return bundle


def check_shared_memory(config: DictConfig, directory: str = "/dev/shm") -> None:
    """Stop where the batches of the workers do not fit, which they wait for in vain.

    Args:
        config: Training config, with its statistics collected.
        directory: Where the system keeps shared memory.

    Raises:
        ValueError: There is too little of it.
    """
    if not os.path.isdir(directory):
        return
    free = shutil.disk_usage(directory).free
    for part in ("train", "valid"):
        loader = config.dataloader[part].iter_factory
        shapes = read_2columns_text(loader.batches.shape_files[0])
        options = OmegaConf.to_container(loader.batches, resolve=True)
        batches = build_batch_sampler(**options) if loader.num_workers else ()
        # Of float32, as long as the longest utterance.
        largest = max(
            (
                4 * len(batch) * max(int(shapes[key]) for key in batch)
                for batch in batches
            ),
            default=0,
        )
        # Each worker prepares two batches, while one is trained on. All processes of a
        # node together hold what one would.
        needed = (2 * loader.num_workers + 1) * largest // config.num_nodes
        if needed > free:
            raise ValueError(
                f"{directory}, where workers leave batches, has {free / 2**20:.0f} MB "
                f"free, but --num_workers {loader.num_workers} needs up to "
                f"{needed / 2**20:.0f} MB for the largest of them. Give Docker "
                f"--shm-size={math.ceil(needed / 2**30)}g or --ipc=host, or run.py "
                "--num_workers 0"
            )


def _utterances(
    config: DictConfig, datasets: Iterable[Mapping[str, Any]]
) -> list[NamedTuple]:
    """Return all utterances of the datasets in their order."""
    dataset_module = load_dataset_module(recipe_dir=config.recipe_dir)
    return [
        utterance
        for dataset in datasets
        for utterance in dataset_module.Dataset(**dataset["data_src_args"]).utterances
    ]


def _discard_unless_made_from(directory: Path, made_from: Mapping[str, Any]) -> bool:
    """Remove a directory that was made from something else, and record what this is.

    Args:
        directory: What a stage writes for one subset.
        made_from: All that decides what it writes.

    Returns:
        Whether it was removed.
    """
    text = OmegaConf.to_yaml(OmegaConf.create(dict(made_from)))
    record = directory / MADE_FROM
    if record.is_file() and record.read_text(encoding="utf-8") == text:
        return False
    discarded = directory.is_dir()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    record.write_text(text, encoding="utf-8")
    return discarded


def _find_decoded_alike(directory: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    """Find what the model and the search of these subsets have decoded beside them.

    Args:
        directory: Of a decoding config, with a directory for each subset.
        names: Subsets that are decoded.

    Returns:
        A digest of the model, and what the datasets of the others are made from.

    Raises:
        ValueError: The subsets were not decoded alike.
    """
    alike: dict[str, list[str]] = {}
    records = {}
    for text in sorted(directory.glob("*/text.scp")):
        record = records[text.parent.name] = OmegaConf.load(text.parent / MADE_FROM)
        key = OmegaConf.to_yaml(
            {"checkpoint": record.checkpoint, "model": record.config.model}
        )
        alike.setdefault(key, []).append(text.parent.name)
    (decoded,) = (group for group in alike.values() if names[0] in group)
    if unlike := [name for name in names if name not in decoded]:
        raise ValueError(
            f"{directory}: {', '.join(unlike)} and {names[0]} were not decoded by the "
            "same model and search: run the stage infer first"
        )
    others = [records[name].config.dataset for name in decoded if name not in names]
    return records[names[0]].checkpoint, others


def _last_checkpoint(exp_dir: Path) -> Path | None:
    """Return the checkpoint that training goes on from, if there is one.

    Lightning writes a checkpoint, removes the one before, and then makes ``last.ckpt``
    a link to the new one, or a copy where there are no links: a run that is stopped in
    between leaves no valid link. One that is stopped while it writes leaves a piece of
    a file, which is removed here.
    """
    last = exp_dir / "last.ckpt"
    for path in (*exp_dir.glob("step*.ckpt"), last):
        # The table of contents is at the end.
        if not zipfile.is_zipfile(path):
            path.unlink(missing_ok=True)
    if last.exists():
        return last
    whole = exp_dir.glob("step*.ckpt")
    return max(whole, key=lambda path: path.stat().st_mtime, default=None)


def _check_space(exp_dir: Path, checkpoint: Path) -> None:
    """Stop before ESPnet3 writes over ``config.yaml`` on a disk that is full."""
    # The next checkpoint, one of the best and their average.
    needed = 3 * checkpoint.stat().st_size
    free = shutil.disk_usage(exp_dir).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"The disk is full: {free:,} bytes are left where the next checkpoints "
            f"need {needed:,}. Make room and give the same command again",
            str(exp_dir),
        )


@contextlib.contextmanager
def _explain_full_disk(exp_dir: Path) -> Iterator[None]:
    """Say where there is no room left, which most errors of writing do not."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch.save has no other type for it.
        in_torch = "PytorchStreamWriter failed" in str(error)
        if not in_torch and getattr(error, "errno", None) not in FULL:
            raise
        raise OSError(
            errno.ENOSPC,
            f"The disk is full, here or in {tempfile.gettempdir()}, where checkpoints "
            "are first written. Make room and give the same command again: training "
            "goes on from the last checkpoint",
            str(exp_dir),
        ) from error


def _refuse_other_settings(config: DictConfig, checkpoint: Path | None) -> None:
    """Compare the settings with the checkpoint's; keep those of a training that starts.

    Optimizers and schedulers would take theirs from the checkpoint, silently.
    """
    settings = lasting_settings(config)
    tokens = Path(config.model.token_list)
    if tokens.is_file():
        settings["tokens"] = digest(tokens.read_text(encoding="utf-8"))
    record = Path(config.exp_dir) / "trained_with.json"
    if checkpoint is None:
        if rank_zero_only.rank == 0:
            write_at_once(json.dumps(settings, indent=1), record)
        return
    if not record.is_file():
        raise ValueError(
            f"{checkpoint} has no {record.name} beside it, which says what it was "
            "trained with: copy that too, or give an average of its training (*.pth) "
            "as --init_param and another --exp_dir"
        )
    before = json.loads(record.read_text(encoding="utf-8"))
    changed = [
        f"{name} ({before.get(name)} before, {settings.get(name)} now)"
        for name in sorted({*before, *settings})
        if before.get(name) != settings.get(name)
    ]
    if changed:
        raise ValueError(
            f"{checkpoint} was trained with other settings: {', '.join(changed)}. Give "
            "them as before, or another --exp_dir or --exp_tag"
        )


def _save_config(task: str, config: DictConfig, exp_dir: str) -> None:
    """Write ``config.yaml``; ESPnet3 takes a directory with a dot for a file."""
    save_espnet_config(task, config, os.path.join(exp_dir, "config.yaml"))


def _write_requirement(bundle: Path) -> None:
    """Say in a bundle what it needs, also to an ESPnet that has not got it."""
    meta = OmegaConf.load(bundle / "meta.yaml")
    config = bundle / meta.yaml_files.asr_train_config
    text = config.read_text(encoding="utf-8")
    # ESPnet2 reads this file and knows no interpolation; ESPnet3 has it read from
    # the root of the bundle.
    text = text.replace("${recipe_dir}/", "")
    for name in ENCODERS:
        text = text.replace(
            f"\nencoder: {name}\n", f"\nencoder: {qualified_name(name)}\n"
        )
    config.write_text(text, encoding="utf-8")
    meta["espnet-fastformer"] = espnet_fastformer.__version__
    OmegaConf.save(meta, bundle / "meta.yaml")


def _pack_for_espnet2(bundle: Path, archive: Path) -> None:
    """Pack what ``espnet.load`` and ``Speech2Text.from_pretrained`` read."""
    meta = OmegaConf.load(bundle / "meta.yaml")
    # ESPnet2 takes names from the working directory.
    with contextlib.chdir(bundle), contextlib.redirect_stdout(None):
        pack(
            files={"asr_model_file": meta.files.asr_model_file},
            yaml_files={"asr_train_config": meta.yaml_files.asr_train_config},
            option=[
                name for key, name in meta.files.items() if key != "asr_model_file"
            ],
            outpath=archive,
        )


def _write_characters(text: str, tokens: Path) -> None:
    """Write the characters of ``text``, the frequent ones first, as asr.sh does."""
    counts = Counter(text.replace("\n", ""))
    letters = ["<space>" if c == " " else c for c, _ in counts.most_common()]
    write_at_once("\n".join(["<blank>", "<unk>", *letters, "<sos/eos>", ""]), tokens)
