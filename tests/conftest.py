import pytest
import torch


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(
                not torch.cuda.is_available(), reason="needs a CUDA device"
            ),
        ),
    ]
)
def device(request) -> torch.device:
    return torch.device(request.param)
