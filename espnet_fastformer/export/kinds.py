"""The kinds of files that a model is exported to, told without importing PyTorch."""

from typing import NamedTuple


class Kind(NamedTuple):
    """The suffix of a kind of file, and what it is good for.

    Those for streams lie in a directory beside what else sherpa-onnx reads.
    """

    suffix: str
    use: str
    is_for_streams: bool = False


KINDS = {
    "onnx": Kind(".onnx", "for ONNX Runtime and others"),
    "torch_export": Kind(".pt2", "for torch.export.load, AOTInductor and ExecuTorch"),
    "int8": Kind(".int8.onnx", "ONNX whose linear maps multiply 8-bit integers"),
    "streaming_onnx": Kind(
        ".onnx", "for streams, in ONNX Runtime and sherpa-onnx", is_for_streams=True
    ),
    "streaming_int8": Kind(
        ".int8.onnx", "the same with 8-bit integers", is_for_streams=True
    ),
}
