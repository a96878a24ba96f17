import pytest
import torch
import yaml

from espnet_fastformer.inference.experiment import (
    check_parameters,
    find_model_file,
    read_parameters,
)

ESPNET2 = [["valid", "acc", "max"], ["train", "loss", "min"]]
ESPNET3 = [["valid/acc", 3, "max"]]


@pytest.mark.parametrize(
    "criterion, files",
    [
        (ESPNET2, ["valid.acc.ave.pth", "valid.acc.ave_2best.pth"]),
        (ESPNET3, ["valid.acc.ave.pth", "valid.cer.ave.pth", "1epoch.pth"]),
        (ESPNET2, ["valid.loss.ave.pth", "valid.acc.best.pth"]),
        (ESPNET2, ["valid.acc.ave_10best.pth", "valid.acc.best.pth"]),
        (None, ["model.pth"]),
    ],
)
def test_the_average_by_the_criterion_is_found(criterion, files, tmp_path):
    config = {"best_model_criterion": criterion}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    for name in files:
        (tmp_path / name).touch()
    assert find_model_file(tmp_path) == tmp_path / files[0]


def test_no_guess_is_made(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.yaml"):
        find_model_file(tmp_path)
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(ValueError, match="no file"):
        find_model_file(tmp_path)
    for name in ("valid.acc.ave_1best.pth", "valid.acc.ave_2best.pth"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="1best.pth, valid.acc.ave_2best.pth"):
        find_model_file(tmp_path)


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
