"""The kinds of files that a model is exported to, told without importing PyTorch."""

from typing import NamedTuple


class Kind(NamedTuple):
    """The suffix of a kind of file, and what it is good for."""

    suffix: str
    use: str


KINDS = {
    "onnx": Kind(".onnx", "for ONNX Runtime and others"),
    "torch_export": Kind(".pt2", "for torch.export.load, AOTInductor and ExecuTorch"),
    "int8": Kind(".int8.onnx", "ONNX whose linear maps multiply 8-bit integers"),
}
