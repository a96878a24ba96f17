import pytest
import yaml

from espnet_fastformer.inference.experiment import find_model_file

ESPNET2 = [["valid", "acc", "max"], ["train", "loss", "min"]]
ESPNET3 = [["valid/acc", 3, "max"]]
DEFAULT = [[of, by, ""] for by in ("loss", "acc") for of in ("train", "valid")]


@pytest.mark.parametrize(
    "criterion, files",
    [
        (ESPNET2, ["valid.acc.ave.pth", "valid.acc.ave_2best.pth"]),
        (ESPNET3, ["valid.acc.ave.pth", "valid.cer.ave.pth", "1epoch.pth"]),
        (ESPNET2, ["valid.loss.ave.pth", "valid.acc.best.pth"]),
        (ESPNET2, ["valid.acc.ave_10best.pth", "valid.acc.best.pth"]),
        (DEFAULT, ["valid.acc.ave.pth", "valid.loss.ave.pth", "train.loss.ave.pth"]),
        # As of a model without a decoder.
        (DEFAULT, ["valid.loss.ave.pth", "train.loss.ave.pth"]),
        (
            [["train", "loss", "min"], ["valid", "cer", "min"]],
            ["valid.cer.ave.pth", "train.loss.ave.pth"],
        ),
        ([["train/loss", 3, "min"]], ["train.loss.ave.pth", "valid.acc.ave.pth"]),
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


@pytest.mark.parametrize(
    "config, words",
    [
        (b"", "has no options"),
        (b"- encoder: aft", "has no options"),
        (b"encoder: [", "is no YAML"),
        (b"\xff\xfe\x00", "is no YAML"),
    ],
)
def test_a_config_without_options_is_named(config, words, tmp_path):
    (tmp_path / "config.yaml").write_bytes(config)
    (tmp_path / "model.pth").touch()
    with pytest.raises(ValueError, match=f"{tmp_path}/config.yaml {words}"):
        find_model_file(tmp_path)
