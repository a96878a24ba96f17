import pytest
import torch

from benchmarks.fusion import COLUMNS, count_graph, main
from benchmarks.kernels import REL_SELFATTN
from benchmarks.results import Report


class Block(torch.nn.Module):
    """A product between two runs of operations that need no other kernel."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return self.linear(x.sin().exp()).tanh().cos()


def test_operations_in_a_row_are_one_kernel():
    counts = count_graph(Block(), torch.randn(4, 8, requires_grad=True))
    assert counts["forward"] == {"fused": 2, "library": 1}
    # Of the input and of the weight.
    assert counts["backward"] == {"fused": 2, "library": 2}


@pytest.mark.slow
def test_encoders(tmp_path):
    main(
        [
            *("--num_blocks", "3", "--seconds", "1", "--threads", "1"),
            *("--competitors", "fastformer", "--output", str(tmp_path / "fusion")),
        ]
    )
    report = Report.load(tmp_path / "fusion.json")
    assert tuple(report.columns) == COLUMNS
    names = (REL_SELFATTN, "fastformer")
    assert [(row[0], row[1]) for row in report.rows] == [
        (name, part) for name in names for part in ("forward", "backward")
    ]
    for _, _, *counts, share in report.rows:
        kernels, compiled, *parts = (int(count.replace(",", "")) for count in counts)
        assert compiled == sum(parts) < kernels
        assert float(share) > 0
    assert report.rows[0][-1] == report.rows[1][-1] == "1.00"
