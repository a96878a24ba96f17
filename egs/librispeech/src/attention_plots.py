"""ESPnet2's attention plots, which ESPnet3 does not have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from espnet2.tasks.asr import ASRTask
from espnet2.train.reporter import SubReporter
from espnet2.train.trainer import Trainer as ESPnet2Trainer
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger


class PlotAttention(Callback):
    """Show what the model attends to in validation utterances, after every epoch.

    Args:
        num_att_plot: Number of utterances, the first ones; 0 for none.
        output_dir: Directory of ``UTTERANCE/LAYER.EPOCHep.png``.
    """

    def __init__(self, num_att_plot: int, output_dir: str) -> None:
        self.num_att_plot = num_att_plot
        self.output_dir = Path(output_dir)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the pictures, in TensorBoard too."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        if self.num_att_plot == 0:
            return
        args = ASRTask.get_parser().parse_args([])
        args.ngpu = int(pl_module.device.type == "cuda")
        writers = [
            logger.experiment
            for logger in trainer.loggers
            if isinstance(logger, TensorBoardLogger)
        ]
        epoch = trainer.current_epoch + 1
        ESPnet2Trainer.plot_attention(
            model=pl_module.model,
            output_dir=self.output_dir,
            summary_writer=writers[0] if writers else None,
            iterator=self._utterances(pl_module),
            reporter=SubReporter("att_plot", epoch, total_count=0),
            options=ESPnet2Trainer.build_options(args),
        )

    def _utterances(self, pl_module: LightningModule) -> Iterator[tuple]:
        dataset = pl_module.valid_dataset
        # ESPnet3 knows them by their place in all subsets together.
        utterances = chain.from_iterable(d.utterances for d in dataset.datasets)
        for index, utterance in enumerate(islice(utterances, self.num_att_plot)):
            _, batch = pl_module.collate_fn([dataset[index]])
            yield [utterance.utt_id], batch
