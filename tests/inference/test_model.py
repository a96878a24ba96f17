import pytest
import torch

from espnet_fastformer.inference.model import check_parameters, read_parameters


def test_parameters_of_another_model_are_named(tmp_path, caplog):
    path = tmp_path / "model.pth"
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    torch.save(model.state_dict(), path)
    check_parameters(model, path)
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, path)
    check_parameters(model, path)
    assert not caplog.records

    torch.save(model[:1].state_dict(), path)
    with pytest.raises(ValueError, match=f"{path} .* lacks 2 of 4 .* as 1.weight"):
        check_parameters(model, path)
    torch.save(model.state_dict(), path)
    check_parameters(model[:1], path)
    assert "no use for 2 parameters, such as 1.weight" in caplog.text


def test_file_without_parameters_is_named(tmp_path):
    path = tmp_path / "model.pth"
    torch.save({"weight": torch.ones(1000)}, path)
    content = path.read_bytes()
    for wrong in (b"", b"no parameters", content[: len(content) // 2]):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=f"{path} holds no parameters"):
            read_parameters(path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="holds no parameters, but list"):
        read_parameters(path)
    torch.save({"bias": torch.ones(2), "weight": torch.tensor([1.0, torch.nan])}, path)
    with pytest.raises(ValueError, match="weight is infinite or no number"):
        read_parameters(path)
    with pytest.raises(FileNotFoundError):
        read_parameters(tmp_path / "missing.pth")
