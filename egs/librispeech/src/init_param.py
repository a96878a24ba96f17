"""The parameters of another model to start a training from.

ESPnet3 has no ``--init_param``.
"""

from __future__ import annotations

from collections.abc import Sequence

from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from lightning.pytorch import Callback, LightningModule, Trainer


class InitParam(Callback):
    """Load parameters as ``espnet2.bin.asr_train --init_param`` does.

    Args:
        init_param: ``FILE``, ``FILE:SRC_KEY:DST_KEY`` or
            ``FILE:SRC_KEY:DST_KEY:EXCLUDED_KEYS`` each.
        ignore_init_mismatch: Leave out parameters of other names or sizes, with a
            warning, instead of refusing the file.
    """

    def __init__(self, init_param: Sequence[str], ignore_init_mismatch: bool) -> None:
        self.init_param = init_param
        self.ignore_init_mismatch = ignore_init_mismatch

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Load them, unless the training goes on from a checkpoint of its own."""
        if trainer.ckpt_path is None:
            for init_param in self.init_param:
                load_pretrained_model(
                    init_param, pl_module.model, self.ignore_init_mismatch
                )
