"""What pip installs, and what that does in fresh interpreters."""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import espnet_fastformer
from espnet_fastformer.registration import ENCODERS, REGISTRIES
from tests.environment import ROOT, Environment

HOOK = "espnet_fastformer.pth"
NOT_AT_START_UP = ["torch", "espnet", "espnet2", "espnet3", "logging", "pathlib"]
START_UP = f"""
import json, sys
print(json.dumps({{
    "package": getattr(sys.modules.get("espnet_fastformer"), "__file__", None),
    "imported": [m for m in {NOT_AT_START_UP} if m in sys.modules],
}}))
"""
# The worker of a spawned pool imports this file anew; the parent imports no ESPnet.
WORKER = f"""
import importlib
import json
import multiprocessing
import sys

REGISTRIES = {REGISTRIES}


def encoders(_):
    return {{
        f"{{module}}.{{registry}}": {{
            name: f"{{cls.__module__}}:{{cls.__name__}}"
            for name, cls in getattr(
                importlib.import_module(module), registry
            ).classes.items()
            if name in {list(ENCODERS)}
        }}
        for module, registries in REGISTRIES.items()
        for registry in registries
    }}


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (found,) = pool.map(encoders, [None])
    assert "torch" not in sys.modules
    print(json.dumps(found))
"""
TURNED_OFF = """
import contextlib
import io
import sys

from espnet2.tasks.asr import ASRTask, encoder_choices
from espnet2.train import trainer

assert "espnet_fastformer" not in sys.modules
assert not hasattr(trainer.calculate_all_attentions, "shows_mixers")
with contextlib.redirect_stderr(io.StringIO()) as err:
    try:
        ASRTask.get_parser().parse_args(["--encoder", "fastformer"])
    except SystemExit:
        pass
assert "argument --encoder: invalid choice: 'fastformer'" in err.getvalue()

from espnet_fastformer import AFTEncoder, FastformerEncoder

assert encoder_choices.get_class("aft") is AFTEncoder
assert encoder_choices.get_class("fastformer") is FastformerEncoder
assert trainer.calculate_all_attentions.shows_mixers
ASRTask.get_parser().parse_args(["--encoder", "fastformer"])
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the sources: building writes into them."""
    copy = tmp_path_factory.mktemp("source")
    generated = shutil.ignore_patterns("data", "downloads", "exp", "__pycache__")
    for entry in ROOT.iterdir():
        if entry.suffix in (".py", ".toml", ".in", ".pth", ".md", ".cfg"):
            shutil.copy(entry, copy)
        elif entry.name in ("espnet_fastformer", "conf", "egs", "tests", "tools"):
            shutil.copytree(entry, copy / entry.name, ignore=generated)
    shutil.copy(ROOT / "LICENSE", copy)
    for folder in ("data", "downloads", "exp"):
        (copy / "egs" / "librispeech" / folder).mkdir()
        (copy / "egs" / "librispeech" / folder / "large.txt").touch()
    return copy


def build(source: Path, out: Path, *args) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *args]
    environment = {"SOURCE_DATE_EPOCH": "1767225600", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*command, source], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def distributions(source, tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    build(source, out)
    return out


@pytest.fixture(scope="module")
def wheel(distributions) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Environment:
    """An environment in which the wheel is installed."""
    environment = Environment(tmp_path_factory.mktemp("installed"))
    environment.install(wheel)
    return environment


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Environment:
    """An environment without the package, in which tests may leave files."""
    return Environment(tmp_path_factory.mktemp("bare"))


def start_up(environment, *options) -> dict:
    done = environment.run(*options, "-c", START_UP)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def asr_train(environment, encoder) -> subprocess.Popen:
    return environment.start(
        *["-m", "espnet2.bin.asr_train", "--print_config", "--encoder", encoder]
    )


def assert_espnets_own_error(process: subprocess.Popen) -> None:
    _, err = process.communicate()
    assert process.returncode == 2
    assert "argument --encoder: invalid choice: 'fastformer'" in err
    assert "espnet_fastformer" not in err


def recorded(environment) -> set[str]:
    """The files of our package which pip will remove."""
    (record,) = environment.site_packages.glob("espnet_fastformer-*/RECORD")
    return {line.split(",")[0] for line in record.read_text().splitlines()}


def package_files(root: Path) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in (root / "espnet_fastformer").rglob("*.py")
    }


def test_wheel_holds_the_package_and_the_hook_and_nothing_else(source, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        (license_file,) = [n for n in archive.namelist() if n.endswith("/LICENSE")]
        (metadata,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        assert archive.read(license_file) == (ROOT / "LICENSE").read_bytes()
        assert (
            f"Version: {espnet_fastformer.__version__}\n"
            in archive.read(metadata).decode()
        )
    assert names == {HOOK, *package_files(source)}


def test_sdist_holds_all_sources_and_nothing_generated(source, distributions):
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    for folder in ("espnet_fastformer", "conf", "egs", "tests", "tools"):
        expected = {
            str(file.relative_to(source))
            for file in (source / folder).rglob("*")
            if file.is_file() and file.name != "large.txt"
        }
        assert expected and expected <= names
    assert {"setup.py", "pyproject.toml", "LICENSE", HOOK} <= names
    assert not [n for n in names if n.endswith("large.txt")]


def test_wheels_are_reproducible(source, wheel, tmp_path):
    build(source, tmp_path, "--wheel")
    digests = {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (wheel, tmp_path / wheel.name)
    }
    assert len(digests) == 1


def test_installed_from_a_wheel(installed):
    package = installed.site_packages / "espnet_fastformer" / "__init__.py"
    assert HOOK in recorded(installed)
    for options in ([], ["-I"], ["-E"]):
        assert start_up(installed, *options) == {
            "package": str(package),
            "imported": [],
        }
    assert start_up(installed, "-S") == {"package": None, "imported": []}


def test_every_registry_in_a_spawned_worker(installed):
    script = installed.path / "worker.py"
    script.write_text(WORKER)
    found = json.loads(installed.output(script))
    names = {name: ":".join(where) for name, where in ENCODERS.items()}
    assert found == {
        f"{module}.{registry}": names
        for module, registries in REGISTRIES.items()
        for registry in registries
    }


def test_espnets_command_line(installed):
    accepted = {name: asr_train(installed, name) for name in ENCODERS}
    for name, process in accepted.items():
        out, err = process.communicate()
        assert process.returncode == 0, err
        config = yaml.safe_load(out)
        assert config["encoder"] == name
        assert "block_type" in config["encoder_conf"]


def test_own_command(installed):
    command = installed.path / "bin" / "espnet-fastformer"
    usage = installed.output(command, "transcribe", "--help")
    assert usage.startswith("usage: espnet-fastformer transcribe")


def test_attention_plots(installed):
    script = "import espnet2.train.trainer as t; print(t.calculate_all_attentions"
    assert installed.output("-c", f"{script}.shows_mixers)") == "True\n"


def test_turned_off_until_imported(installed):
    installed.output("-c", TURNED_OFF, ESPNET_FASTFORMER_AUTOLOAD="0")


def test_editable_install_and_uninstall(source, tmp_path):
    environment = Environment(tmp_path)
    before = set(environment.site_packages.iterdir())
    environment.install("--editable", source)
    assert HOOK in recorded(environment)
    assert start_up(environment) == {
        "package": str(source / "espnet_fastformer" / "__init__.py"),
        "imported": [],
    }
    process = asr_train(environment, "fastformer")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "\nencoder: fastformer\n" in out

    environment.pip("uninstall", "--yes", "espnet-fastformer")
    assert set(environment.site_packages.iterdir()) == before
    assert start_up(environment) == {"package": None, "imported": []}
    assert_espnets_own_error(asr_train(environment, "fastformer"))


def test_uninstalling_a_wheel_leaves_nothing(wheel, tmp_path):
    environment = Environment(tmp_path)
    before = set(environment.site_packages.iterdir())
    environment.install(wheel)
    assert start_up(environment)["package"] is not None
    environment.pip("uninstall", "--yes", "espnet-fastformer")
    assert set(environment.site_packages.iterdir()) == before


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(None, id="missing"),
        pytest.param("raise RuntimeError('broken')", id="raises"),
        pytest.param("this is not Python", id="syntax error"),
        pytest.param("from espnet_fastformer import nowhere", id="half installed"),
    ],
)
def test_a_hook_left_behind_is_silent(bare, package):
    shutil.copy(ROOT / HOOK, bare.site_packages)
    folder = bare.site_packages / "espnet_fastformer"
    shutil.rmtree(folder, ignore_errors=True)
    if package is not None:
        folder.mkdir()
        (folder / "__init__.py").write_text(package)
    done = bare.run("-c", "print('started')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
