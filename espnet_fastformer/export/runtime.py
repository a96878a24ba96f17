"""Exported files, called as the module that they were made of."""

from collections.abc import Callable
from pathlib import Path

import torch

from espnet_fastformer.export.formats import INPUTS

Runtime = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def load(path: str | Path) -> Runtime:
    """Open a file that ``espnet-fastformer export`` wrote, on the CPU.

    It runs in as many threads as PyTorch has.

    Args:
        path: ``*.onnx`` or ``*.pt2``.

    Returns:
        A function with the arguments and results of
        :meth:`~espnet_fastformer.export.module.CTCEncoder.forward`.
    """
    path = Path(path)
    if path.suffix == ".pt2":
        return torch.export.load(path).module()

    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def run(feats: torch.Tensor, lengths: torch.Tensor):
        inputs = dict(zip(INPUTS, (feats.numpy(), lengths.numpy()), strict=True))
        return tuple(torch.from_numpy(output) for output in session.run(None, inputs))

    return run
