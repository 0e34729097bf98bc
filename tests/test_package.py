"""What travels with the package, and what is said of it: files beside the code, versions, workflows."""

from __future__ import annotations

import re
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from package import beside_code, module_block
from packaging.specifiers import SpecifierSet
from test_docs import makefile_targets, targets_named

import meq

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
with (ROOT / "pyproject.toml").open("rb") as file:
    PROJECT: dict[str, Any] = tomllib.load(file)["project"]


def travelling(builder: type[WheelBuilder] | type[SdistBuilder]) -> set[str]:
    return {each.distribution_path for each in builder(str(ROOT)).recurse_included_files()}


# -- files -------------------------------------------------------------------------------------------------------------


def test_every_file_beside_the_code_travels_with_the_wheel() -> None:
    wanted = set(beside_code())
    assert {"meq/py.typed", "meq/viz/report/templates/style.css", "meq/viz/app/templates/page.css"} <= wanted
    assert wanted - travelling(WheelBuilder) == set()


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    found = travelling(WheelBuilder)
    assert "meq/core/solve.py" in found
    assert [name for name in found if not name.startswith("meq/")] == []


def test_the_sdist_holds_what_the_wheel_is_built_from_and_no_records_of_results() -> None:
    found = travelling(SdistBuilder)
    assert {f"src/{name}" for name in beside_code()} <= found
    assert [name for name in found if name.startswith(("results/", "benchmarks/", "tests/", "docs/"))] == []


def test_the_block_that_is_tried_in_an_empty_environment_is_in_the_readme() -> None:
    block = module_block((ROOT / "README.md").read_text(encoding="utf-8"))
    assert block.startswith("import torch")
    with pytest.raises(ValueError, match="no Python block"):
        module_block("# A page without one\n")


# -- what is said of it ------------------------------------------------------------------------------------------------


def test_the_metadata_of_the_package_are_sound() -> None:
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    core.validate_fields()
    assert core.classifiers
    assert core.maintainers_data["name"]


def test_every_python_that_is_declared_is_required_and_run() -> None:
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in PROJECT["classifiers"]]
    declared = [each[1] for each in found if each]
    assert declared == ["3.11", "3.12", "3.13"]
    assert [each for each in declared if each not in SpecifierSet(PROJECT["requires-python"])] == []
    assert "3.10" not in SpecifierSet(PROJECT["requires-python"])
    (run,) = re.findall(r"^PYTHONS = (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert run.split() == declared
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    assert tested["jobs"]["pythons"]["strategy"]["matrix"]["python"] == declared


def test_citation_changelog_and_package_agree_on_the_version_and_its_date() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == meq.__version__
    newest = re.search(r"^## \[(\S+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest.groups() == (meq.__version__, str(cited["date-released"]))
    assert isinstance(cited["date-released"], date)


# -- workflows ---------------------------------------------------------------------------------------------------------


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    return [step for job in content["jobs"].values() for step in job["steps"]]


def test_there_are_workflows_for_tests_docs_and_publishing() -> None:
    assert [workflow.stem for workflow in WORKFLOWS] == ["docs", "publish", "tests"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_and_tests_that_exist(workflow: Path) -> None:
    lines = [line for step in steps_of(workflow) for line in step.get("run", "").splitlines()]
    assert {target for line in lines for target in targets_named(line)} <= makefile_targets()
    named = {word for line in lines for word in line.split() if word.startswith("tests/")}
    assert [word for word in named if not (ROOT / word.partition("::")[0]).exists()] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_of_others_are_pinned_and_rights_are_few(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    used = [step["uses"] for step in steps_of(workflow) if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", each)] == []
    assert content["permissions"] == {"contents": "read"}


def test_the_package_is_published_without_a_password_and_only_from_tags() -> None:
    workflow = ROOT / ".github" / "workflows" / "publish.yml"
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert content[True] == {"push": {"tags": ["v*"]}}, "YAML reads the word `on` as True"
    assert content["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in workflow.read_text(encoding="utf-8")


# -- systems -----------------------------------------------------------------------------------------------------------


def test_this_python_is_one_that_is_declared() -> None:
    assert f"Programming Language :: Python :: {sys.version_info[0]}.{sys.version_info[1]}" in PROJECT["classifiers"]
