"""ESPnet2's distributed training, in two processes on the CPU."""

import pytest
import torch

from .espnet2_training import ENCODER, options, start, write_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> list[str]:
    return write_data(tmp_path_factory.mktemp("data") / "all")


def in_two_processes(command: list[str], rendezvous) -> list[str]:
    """Start one process for each rank, as a launcher does."""
    launch = (
        *("--dist_backend", "gloo", "--dist_init_method", f"file://{rendezvous}"),
        *("--dist_world_size", "2", "--multiprocessing_distributed", "false"),
    )
    processes = [start(*command, *launch, "--dist_rank", str(rank)) for rank in (0, 1)]
    outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs


def test_two_processes_train_as_one(data, tmp_path):
    process = start(*options(data, tmp_path / "one", max_epoch=2))
    output, _ = process.communicate()
    assert process.returncode == 0, output
    in_two_processes(options(data, tmp_path / "two", max_epoch=2), tmp_path / "store")
    one, two = (
        torch.load(tmp_path / exp / "checkpoint.pth", weights_only=False)
        for exp in ("one", "two")
    )
    for epoch in (1, 2):
        for mode in ("train", "valid"):
            losses = [c["reporter"]["stats"][epoch][mode]["loss"] for c in (one, two)]
            assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for name, weight in one["model"].items():
        torch.testing.assert_close(two["model"][name], weight, rtol=1e-4, atol=1e-5)


def test_processes_may_drop_different_layers(data, tmp_path):
    encoder_conf = ENCODER | {
        "layer_drop_rate": 0.5,
        "interctc_layer_idx": [1, 2],
        "interctc_use_conditioning": True,
    }
    command = options(
        data,
        tmp_path / "exp",
        encoder="aft",
        encoder_conf=encoder_conf,
        model_conf={"ctc_weight": 1.0, "interctc_weight": 0.3},
        max_epoch=3,
        unused_parameters=True,
    )
    output, _ = in_two_processes(command, tmp_path / "store")
    assert "3epoch results:" in output
    assert "loss_interctc_layer1" in output
