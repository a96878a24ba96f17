import contextlib
import shutil
from pathlib import Path

import pytest
import yaml
from espnet2.main_funcs.pack_funcs import pack

from espnet_fastformer.inference.experiment import find_model_file, open_experiment

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


@pytest.fixture(params=["inside", "outside"])
def packed(request, tmp_path) -> Path:
    """Archives that ESPnet packed in the directory of the training, and in another."""
    files = [Path("exp/config.yaml"), Path("exp/model.pth"), Path("stats/feats.npz")]
    work = tmp_path / "work"
    if request.param == "outside":
        files = [work / path for path in files]
    config = {"normalize_conf": {"stats_file": str(files[2])}, "token_list": ["A"]}
    (tmp_path / "packed").mkdir()
    with contextlib.chdir(tmp_path):
        for path in files:
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(yaml.safe_dump(config))
    with contextlib.chdir(work if request.param == "inside" else tmp_path / "packed"):
        for suffix in (".zip", ".tgz"):
            pack(
                files={"asr_model_file": files[1]},
                yaml_files={"asr_train_config": files[0]},
                option=[files[2]],
                outpath=tmp_path / "packed" / f"v1.2{suffix}",
            )
    shutil.unpack_archive(tmp_path / "packed/v1.2.zip", tmp_path / "packed/model_pack")
    shutil.rmtree(work)
    return tmp_path / "packed"


@pytest.mark.parametrize("name", ["v1.2.zip", "v1.2.tgz", "model_pack"])
def test_a_packed_model(name, packed):
    with open_experiment(packed / name) as (config, model_file):
        assert model_file.name == "model.pth" and model_file.is_file()
        content = yaml.safe_load(config.read_text())
        stats = Path(content["normalize_conf"]["stats_file"])
        assert stats.name == "feats.npz" and stats.is_file()
        assert content["token_list"] == ["A"]
    other = packed / "other.pth"
    with open_experiment(packed / name, other) as (_, model_file):
        assert model_file == other
    assert not config.exists()


def test_an_experiment_is_left_as_it_is(tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / "model.pth").touch()
    files = (tmp_path / "config.yaml", tmp_path / "model.pth")
    with open_experiment(tmp_path) as found:
        assert found == files


def test_what_a_packed_model_lacks_is_named(tmp_path):
    def reason(exp: Path) -> str:
        with pytest.raises(ValueError) as caught, open_experiment(exp):
            pass
        return str(caught.value)

    assert reason(tmp_path).startswith(f"{tmp_path} has no config.yaml, ")
    (tmp_path / "meta.yaml").write_text("{files: {}, yaml_files: {train_config: a}}")
    assert "its meta.yaml names no asr_train_config" in reason(tmp_path)
    for name in ("cut.zip", "cut.tgz", "model.pth"):
        (tmp_path / name).write_bytes(b"PK\x03\x04")
        assert f"{name} is no directory, and no archive" in reason(tmp_path / name)
