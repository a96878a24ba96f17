"""Kernels of encoders whose blocks are compiled, counted without a GPU.

A training step without optimiser, as in benchmarks.kernels, with padding. Inductor
fuses the operations of a block as it does for Triton, which is its code for GPUs, but
for shapes that do not vary, and what it decides by the device it decides for the CPU.
No code is made of it. All blocks are alike, so that one is counted. What is not in
blocks is not compiled, as with ``compile: true``, which ESPnet's encoders lack. Its
``fast_selfattn`` is left out: it calls NumPy, and so makes no graph.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from functorch.compile import make_boxed_func
from torch._inductor import config, ir
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.exc import InductorError
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    NopKernelSchedulerNode,
)

from benchmarks.encoders import FEATURES, FRAMES_PER_SECOND, build_encoder
from benchmarks.kernels import COMPETITORS as ALL
from benchmarks.kernels import (
    FAST_SELFATTN,
    REL_SELFATTN,
    count_step,
    get_count_parser,
    run,
)

COMPETITORS = [name for name in ALL if name != FAST_SELFATTN]
COLUMNS = (
    "encoder",
    "pass",
    "kernels",
    "compiled",
    "fused",
    "of libraries",
    "not in blocks",
    f"of {REL_SELFATTN}",
)


class _Counted(Exception):
    """Ends a compilation before there is code."""


def count_graph(block: torch.nn.Module, *inputs: torch.Tensor) -> dict[str, Counter]:
    """Count the kernels of a compiled block.

    Args:
        block: In training mode, on the CPU.
        *inputs: Its arguments.

    Returns:
        For the forward and the backward pass, how many kernels are fused ones and how
        many a library's.
    """
    counts = {"forward": Counter(), "backward": Counter()}

    def count(graph: torch.fx.GraphModule, inputs: Sequence, **options):
        def look(nodes: list[BaseSchedulerNode]):
            part = "backward" if options.get("is_backward") else "forward"
            counts[part].update(filter(None, map(kind_of, nodes)))
            raise _Counted

        try:
            with config.patch(cpu_backend="triton", _post_fusion_custom_pass=look):
                compile_fx_inner(graph, inputs, **options)
        except InductorError as error:
            if not isinstance(error.inner_exception, _Counted):
                raise
        return make_boxed_func(graph.forward)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence):
        return compile_fx(graph, inputs, inner_compile=count)

    torch._dynamo.reset()
    call = torch.compile(block, backend=backend, fullgraph=True, dynamic=False)
    out = call(*inputs)
    while isinstance(out, tuple):  # with the mask, and ESPnet's with positions
        out = out[0]
    out.sum().backward()
    return counts


def kind_of(node: BaseSchedulerNode) -> str | None:
    """Name what Inductor makes of a node: a kernel, or None."""
    # The second takes one result out of several.
    if isinstance(node, NopKernelSchedulerNode) or isinstance(
        node.node, ir.MultiOutput
    ):
        return None
    return "library" if isinstance(node, ExternKernelSchedulerNode) else "fused"


def count_block(name: str, lengths: torch.Tensor) -> dict[str, Counter]:
    """Count the kernels of one compiled block of an encoder, see :func:`count_graph`.

    Args:
        name: One of :data:`benchmarks.encoders.ENCODERS`.
        lengths: Frames of features of each utterance (B,).
    """
    encoder = build_encoder(name, num_blocks=1).train()
    (block,) = encoder.encoders
    inputs = []

    def keep(block: torch.nn.Module, args: tuple) -> None:
        inputs.extend(args)

    with block.register_forward_pre_hook(keep):
        encoder(torch.randn(len(lengths), int(lengths.max()), FEATURES), lengths)
    return count_graph(block, *inputs)


def rows(options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield cells under :data:`COLUMNS`, first those of what all are compared with."""
    frames = FRAMES_PER_SECOND * options.seconds
    lengths = torch.tensor([frames, 0.6 * frames]).long()
    of_theirs: dict[str, int] = {}
    for name in dict.fromkeys((REL_SELFATTN, *options.competitors)):
        one, two = (dict(count_step(name, lengths, blocks)) for blocks in (1, 2))
        for part, graph in count_block(name, lengths).items():
            first = one[part].kernels.total()
            block = two[part].kernels.total() - first
            outside = first - block
            compiled = outside + options.num_blocks * graph.total()
            of_theirs.setdefault(part, compiled)
            yield [
                name,
                part,
                f"{outside + options.num_blocks * block:,}",
                f"{compiled:,}",
                f"{options.num_blocks * graph['fused']:,}",
                f"{options.num_blocks * graph['library']:,}",
                f"{outside:,}",
                f"{compiled / of_theirs[part]:.2f}",
            ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = get_count_parser(__doc__, "fusion", COMPETITORS)
    options = parser.parse_args(argv)
    if FAST_SELFATTN in options.competitors:
        parser.error(f"{FAST_SELFATTN} makes no graph: it calls NumPy")
    run("Kernels after fusion", COLUMNS, rows, options)


if __name__ == "__main__":
    main()
