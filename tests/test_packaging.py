"""What pip installs, and what that does in fresh interpreters."""

import email
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import espnet_fastformer
from espnet_fastformer.registration import ENCODERS, REGISTRIES
from tests.environment import ROOT, Environment

HOOK = "espnet_fastformer.pth"
SOURCES = [
    ".github",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "pyproject.toml",
    "setup.py",
    HOOK,
    "benchmarks",
    "conf",
    "docs",
    "egs",
    "espnet_fastformer",
    "tests",
    "tools",
]
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
    from espnet2.train import trainer

    assert trainer.calculate_all_attentions.shows_mixers
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
    """A copy of the sources, among files that do not belong to them."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=generated)
        else:
            shutil.copy(ROOT / name, copy)
    for folder in (
        ".venv/bin",
        "benchmarks/results",
        "egs/librispeech/data",
        "egs/librispeech/downloads",
        "egs/librispeech/exp",
        "espnet_fastformer/__pycache__",
        "notes",
    ):
        (copy / folder).mkdir(parents=True)
        (copy / folder / "generated.txt").touch()
    (copy / "generated.py").touch()
    return copy


def generated(directory: str, names: list[str]) -> set[str]:
    """Tell which entries of a folder of this checkout git ignores."""
    ignored = {"__pycache__"}
    if directory == str(ROOT / "benchmarks"):
        ignored |= {"results"}
    if Path(directory).parent == ROOT / "egs":
        ignored |= {"data", "downloads", "exp"}
    return ignored.intersection(names)


@pytest.fixture(scope="module")
def distributions(source, tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
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


def recorded(environment) -> set[str]:
    """The files of our package which pip will remove."""
    (record,) = environment.site_packages.glob("espnet_fastformer-*/RECORD")
    return {line.split(",")[0] for line in record.read_text().splitlines()}


def files(root: Path, *folders: str) -> set[str]:
    return {
        str(path.relative_to(root))
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.is_file() and not path.name.startswith("generated.")
    }


def test_wheel_holds_the_package_and_the_hook_and_nothing_else(source, wheel):
    info = f"espnet_fastformer-{espnet_fastformer.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert sorted(archive.namelist()) == sorted(
            [
                HOOK,
                *files(source, "espnet_fastformer"),
                f"{info}/METADATA",
                f"{info}/RECORD",
                f"{info}/WHEEL",
                f"{info}/entry_points.txt",
                f"{info}/licenses/LICENSE",
                f"{info}/top_level.txt",
            ]
        )
        for name in (HOOK, *files(source, "espnet_fastformer")):
            assert archive.read(name) == (source / name).read_bytes()
        license_text = archive.read(f"{info}/licenses/LICENSE")
        assert license_text == (ROOT / "LICENSE").read_bytes()
        metadata = email.message_from_string(archive.read(f"{info}/METADATA").decode())
    assert metadata["Name"] == "espnet-fastformer"
    assert metadata["Version"] == espnet_fastformer.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()


def test_sdist_holds_all_sources_and_nothing_generated(source, distributions):
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()]
    folders = [name for name in SOURCES if (source / name).is_dir()]
    expected = {name for name in SOURCES if name not in folders}
    expected |= files(source, *folders) | {"PKG-INFO", "setup.cfg"}
    info = "espnet_fastformer.egg-info/"
    assert f"{info}PKG-INFO" in names
    assert sorted(n for n in names if not n.startswith(info)) == sorted(expected)


def test_the_package_index_takes_both(distributions):
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *distributions.iterdir()],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_every_dependency_is_pinned(wheel):
    pinned = {}
    for line in (ROOT / "tools" / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            pin = Requirement(line)
            (version,) = pin.specifier
            assert version.operator == "=="
            pinned[pin.name] = version.version
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    for line in metadata.get_all("Requires-Dist"):
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[requirement.name])


def test_installed_from_a_wheel(installed):
    package = installed.site_packages / "espnet_fastformer" / "__init__.py"
    assert HOOK in recorded(installed)
    for options in ([], ["-I"], ["-E"]):
        assert start_up(installed, *options) == {
            "package": str(package),
            "imported": [],
        }
    assert start_up(installed, "-S") == {"package": None, "imported": []}


def test_every_registry_and_attention_plots_in_a_spawned_worker(installed):
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
    command = ("-m", "espnet2.bin.asr_train", "--print_config", "--encoder", "aft")
    config = yaml.safe_load(installed.output(*command))
    assert config["encoder"] == "aft"
    assert "aft_type" in config["encoder_conf"]


def test_type_checkers_know_the_encoders(installed):
    program = installed.path / "program.py"
    program.write_text(
        "import espnet_fastformer\n"
        "espnet_fastformer.AFTEncoder(80, aft_type=1)\n"
        "espnet_fastformer.ATFEncoder(80)\n"
    )
    config = ROOT / "pyproject.toml"
    done = installed.run("-m", "mypy", "--config-file", config, program)
    mistyped, misspelt, total = done.stdout.splitlines()
    assert 'incompatible type "int"; expected "str"' in mistyped
    assert 'has no attribute "ATFEncoder"' in misspelt
    assert total.startswith("Found 2 errors")


def test_own_command(installed):
    command = installed.path / "bin" / "espnet-fastformer"
    usage = installed.output(command, "transcribe", "--help")
    assert usage.startswith("usage: espnet-fastformer transcribe")


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
    environment.pip("uninstall", "--yes", "espnet-fastformer")
    assert set(environment.site_packages.iterdir()) == before
    assert start_up(environment) == {"package": None, "imported": []}


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
