"""What GitHub and pre-commit read of this repository."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

import espnet_fastformer
from tests.environment import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = list(GITHUB.glob("workflows/*.yml"))
FORMS = [p for p in GITHUB.glob("ISSUE_TEMPLATE/*.yml") if p.name != "config.yml"]


def check(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("github-issue-forms", FORMS),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_files_are_of_their_schema(schema, paths):
    schema = f"vendor.{schema}"
    check(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *paths)


def test_workflows_are_safe():
    zizmor = Path(sysconfig.get_path("scripts"), "zizmor")
    check(zizmor, "--offline", "--persona", "pedantic", *WORKFLOWS)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_ask_for_versions(path):
    (field,) = [
        f for f in yaml.safe_load(path.read_text())["body"] if f["id"] == "version"
    ]
    assert "`espnet-fastformer --version`" in field["attributes"]["description"]
    assert field["validations"]["required"]


def test_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == espnet_fastformer.__version__


def test_pre_commit_checks_what_tests_check():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repository,) = config["repos"]
    (hook,) = repository["hooks"]
    assert hook["entry"] in (ROOT / "tests" / "run.sh").read_text().splitlines()
