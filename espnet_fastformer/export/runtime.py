"""Exported files, called as the module that they were made of."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from espnet_fastformer.export import sherpa
from espnet_fastformer.export.writers import INPUTS

Runtime = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def load(path: str | Path, clips: bool = False) -> Runtime:
    """Open a file that ``espnet-fastformer export`` wrote, on the CPU.

    It runs in as many threads as PyTorch has.

    Args:
        path: ``*.onnx`` or ``*.pt2``.
        clips: Whether a file for streams is given features as sherpa-onnx clips them.

    Returns:
        A function with the arguments and results of
        :meth:`~espnet_fastformer.export.module.CTCEncoder.forward`. A file for streams
        is given the utterances chunk by chunk.
    """
    path = Path(path)
    if path.suffix == ".pt2":
        return torch.export.load(path).module()

    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    if "T" in session.get_modelmeta().custom_metadata_map:
        return partial(_run_streams, session, clips)

    def run(feats: torch.Tensor, lengths: torch.Tensor):
        inputs = dict(zip(INPUTS, (feats.numpy(), lengths.numpy()), strict=True))
        return tuple(torch.from_numpy(output) for output in session.run(None, inputs))

    return run


def _run_streams(session, clips: bool, feats: torch.Tensor, lengths: torch.Tensor):
    """Give a file for streams the utterances of a batch chunk by chunk."""
    metadata = session.get_modelmeta().custom_metadata_map
    size, shift = int(metadata["T"]), int(metadata["decode_chunk_len"])
    stride = shift // session.get_outputs()[0].shape[1]
    olens = ((lengths - size + shift) // stride).clamp(min=0)
    x = feats * float(metadata["feats_scale"]) + float(metadata["feats_offset"])
    x = torch.nn.functional.pad(x, (0, 0, 0, size)).numpy()
    feed = {
        entry.name: np.zeros(
            [len(x) if dim == "batch" else dim for dim in entry.shape],
            np.int64 if entry.type == "tensor(int64)" else np.float32,
        )
        for entry in session.get_inputs()
    }
    caches = list(feed)[1:]
    outs = []
    for start in range(0, int(olens.max()) * stride, shift):
        chunk = x[:, start : start + size]
        feed["x"] = sherpa.clip(chunk) if clips else chunk
        missing = (start + size - lengths).clamp(0, size)
        feed["padding"][0, :, 0, 0] = missing.numpy()
        log_probs, *after = session.run(None, feed)
        feed |= zip(caches, after, strict=True)
        outs.append(torch.from_numpy(log_probs))
    return torch.cat(outs, dim=1)[:, : olens.max()], olens
