from collections.abc import Iterator

import pytest
import torch

# Registers the device, before the first backward pass counts those that there are.
from tests import simulated_device

ACCELERATOR = "cuda" if torch.cuda.is_available() else "simulated"


@pytest.fixture
def simulated() -> Iterator[torch.device]:
    """A device that stands in for a GPU, and counts."""
    with simulated_device.available() as device:
        yield device


@pytest.fixture
def accelerator(request) -> torch.device:
    """A GPU, or what stands in for it where there is none."""
    if ACCELERATOR == "cuda":
        return torch.device("cuda")
    return request.getfixturevalue("simulated")


@pytest.fixture(params=["cpu", ACCELERATOR])
def device(request) -> torch.device:
    if request.param == "cpu":
        return torch.device("cpu")
    return request.getfixturevalue("accelerator")
