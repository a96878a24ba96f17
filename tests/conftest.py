from collections.abc import Iterator

import pytest
import torch

ACCELERATOR = "cuda" if torch.cuda.is_available() else "simulated"


@pytest.fixture
def accelerator() -> Iterator[torch.device]:
    """A GPU, or where there is none a device that stands in for it."""
    if ACCELERATOR == "cuda":
        yield torch.device("cuda")
        return
    # Registers the device, which tests that do without it shall not see.
    from tests import simulated_device

    with simulated_device.available() as device:
        yield device


@pytest.fixture(params=["cpu", ACCELERATOR])
def device(request) -> torch.device:
    if request.param == "cpu":
        return torch.device("cpu")
    return request.getfixturevalue("accelerator")
