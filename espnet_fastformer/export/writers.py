"""Writers of the kinds of files that a model is exported to."""

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from espnet_fastformer.encoder.input_layer import receptive_field
from espnet_fastformer.export.streaming import BATCH_DIMS, StreamingCTCEncoder
from espnet_fastformer.export.streaming import INPUTS as STREAMING_INPUTS
from espnet_fastformer.export.streaming import OUTPUTS as STREAMING_OUTPUTS

INPUTS = ("feats", "feats_lengths")
OUTPUTS = ("log_probs", "log_probs_lengths")
#: Entry of a ``.pt2`` file that holds what ONNX files have as metadata.
METADATA = "metadata.json"

_PRODUCTS = ["MatMul", "Gemm"]
_CLASSES = "pkg.torch.onnx.class_hierarchy"
# The batch and length that are traced; the graph is for all.
_BATCH = 2
_FRAMES = 200


def least_frames(embed: torch.nn.Module) -> int:
    """Return the frames of features of the shortest batch that a file takes.

    They give two output frames, as torch takes a length of one for a special case.

    Args:
        embed: Input layer of the encoder.
    """
    return sum(receptive_field(embed))


def trace(
    module: torch.nn.Module, num_feats: int, max_frames: int | None = None
) -> torch.export.ExportedProgram:
    """Make a graph for any number of utterances of at least two output frames.

    Args:
        module: :class:`~espnet_fastformer.export.module.CTCEncoder`, in eval mode.
        num_feats: Number of features F.
        max_frames: Most frames of features, where an encoder has a limit; this
            package's have none.
    """
    feats = torch.randn(_BATCH, _FRAMES, num_feats)
    lengths = torch.tensor([_FRAMES, _FRAMES - 40])
    batch = torch.export.Dim("batch")
    min_frames = least_frames(module.encoder.embed)
    frames = torch.export.Dim("frames", min=min_frames, max=max_frames)
    shapes = {"feats": {0: batch, 1: frames}, "feats_lengths": {0: batch}}
    with torch.no_grad():
        return torch.export.export(
            module,
            (feats, lengths),
            dynamic_shapes=shapes,
            # torch cannot prove some of its guards that hold for all these lengths.
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def write_torch_export(
    module: torch.nn.Module,
    num_feats: int,
    path: Path,
    metadata: Mapping[str, object],
    max_frames: int | None = None,
) -> None:
    """Write a ``.pt2`` file for ``torch.export.load``, C++ and AOTInductor."""
    program = trace(module, num_feats, max_frames)
    torch.export.save(program, path, extra_files={METADATA: json.dumps(metadata)})


def write_onnx(
    module: torch.nn.Module,
    num_feats: int,
    path: Path,
    metadata: Mapping[str, object],
    max_frames: int | None = None,
) -> None:
    """Write an ONNX file; each value of the metadata is JSON."""
    import onnxscript  # noqa: F401  torch.onnx needs it, and would say so late

    with warnings.catch_warnings():
        # It tells about its own insides.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            trace(module, num_feats, max_frames),
            input_names=INPUTS,
            output_names=OUTPUTS,
            # Their names only, as the traced graph has them.
            dynamic_shapes=({0: "batch", 1: "frames"}, {0: "batch"}),
            verbose=False,
        )
    _save_onnx(program, path, metadata)


def write_streaming_onnx(
    module: StreamingCTCEncoder,
    num_feats: int,
    path: Path,
    metadata: Mapping[str, object],
) -> None:
    """Write an ONNX file that takes the next chunk of each stream of a batch."""
    import onnxscript  # noqa: F401  torch.onnx needs it, and would say so late

    inputs = (torch.randn(_BATCH, module.size, num_feats), *module.caches(_BATCH))
    batch = torch.export.Dim("batch")
    first, *others = ({dim: batch} for dim in BATCH_DIMS)
    with torch.no_grad():
        graph = torch.export.export(
            module,
            inputs,
            dynamic_shapes=(first, tuple(others)),
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    first, *others = ({dim: "batch"} for dim in BATCH_DIMS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            input_names=STREAMING_INPUTS,
            output_names=STREAMING_OUTPUTS,
            dynamic_shapes=(first, tuple(others)),
            verbose=False,
        )
    # What programs on phones can read, whose ONNX Runtime is years old.
    program.model.ir_version = 9
    program.model.metadata_props.update(module.metadata)
    _save_onnx(program, path, metadata)


def _save_onnx(
    program: torch.onnx.ONNXProgram, path: Path, metadata: Mapping[str, object]
) -> None:
    """Save a graph with its metadata, of which each value is JSON."""
    properties = {key: json.dumps(value) for key, value in metadata.items()}
    program.model.metadata_props.update(properties)
    program.save(path)


def write_int8(
    module: torch.nn.Module,
    num_feats: int,
    path: Path,
    metadata: Mapping[str, object],
    max_frames: int | None = None,
) -> None:
    """Write an ONNX file whose linear maps multiply 8-bit integers.

    Weights are rounded once, with a scale for each output channel; inputs are rounded
    while it runs, when their range is known. Convolutions, norms, sums over time and
    products of weights with each other stay in float32.
    """
    _quantize(
        lambda exact: write_onnx(module, num_feats, exact, metadata, max_frames), path
    )


def write_streaming_int8(
    module: StreamingCTCEncoder,
    num_feats: int,
    path: Path,
    metadata: Mapping[str, object],
) -> None:
    """Write the file of :func:`write_streaming_onnx` as :func:`write_int8` does."""
    _quantize(
        lambda exact: write_streaming_onnx(module, num_feats, exact, metadata), path
    )


def _quantize(write_exact: Callable[[Path], None], path: Path) -> None:
    """Write an ONNX file with the linear maps of another in 8-bit integers."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as directory:
        exact = Path(directory) / "model.onnx"
        write_exact(exact)
        linear_maps = [
            node.name
            for node in onnx.load(exact).graph.node
            if node.op_type in _PRODUCTS and _is_of_linear(node.metadata_props)
        ]
        quantize_dynamic(
            exact,
            path,
            op_types_to_quantize=_PRODUCTS,
            nodes_to_quantize=linear_maps,
            per_channel=True,
            weight_type=QuantType.QInt8,
            # Sums of two products of 8 bits saturate on x86 without VNNI.
            reduce_range=True,
        )


def _is_of_linear(metadata_props) -> bool:
    """Tell whether torch's exporter noted that a torch.nn.Linear made a node."""
    classes = {entry.key: entry.value for entry in metadata_props}
    return "'torch.nn.modules.linear.Linear'" in classes.get(_CLASSES, "")


WRITERS = {
    "onnx": write_onnx,
    "torch_export": write_torch_export,
    "int8": write_int8,
    "streaming_onnx": write_streaming_onnx,
    "streaming_int8": write_streaming_int8,
}
