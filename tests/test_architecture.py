"""The imports under src/meq follow the table in docs/architecture.md, and importing meq is free of side effects."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "meq"
MAP = ROOT / "docs" / "architecture.md"

# Written here as well as in the map, so that an edit of the table alone cannot let plumbing into the science.
SCIENCE = {"core", "models", "objectives", "analysis"}
PLUMBING = {"data", "encoders", "training", "studies", "runs", "sklearn", "viz", "cli"}

HEAVY = ("transformers", "gradio", "ray", "matplotlib", "accelerate", "pandas", "scipy", "onnxruntime")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one package may import: packages or modules of meq, and packages from elsewhere (None: any)."""

    project: frozenset[str]
    third_party: frozenset[str] | None


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import statement: the module it names, in full, and, for `from module import names`, the names."""

    line: int
    module: str
    names: tuple[str, ...] = ()


def read_table(text: str) -> dict[str, Row]:
    """The rows under the heading "Allowed imports", by package."""
    section = re.search(r"^## Allowed imports$(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert section, 'no heading "## Allowed imports"'
    table: dict[str, Row] = {}
    for line in re.findall(r"^\| `.*\|$", section[1], flags=re.MULTILINE):
        package, project, third_party = (cell.strip() for cell in line.strip("|").split("|"))
        package = package.strip("`")
        assert package not in table, f"two rows for {package}"
        table[package] = Row(
            project=frozenset(re.findall(r"`([\w.]+)`", project)),
            third_party=None if third_party == "any" else frozenset(re.findall(r"`(\w+)`", third_party)),
        )
    return table


def imports_of(path: Path, source: Path) -> Iterator[Import]:
    """Every import of a file, wherever in it: top level, inside functions, and import_module("a name")."""
    folder = [source.name, *path.parent.relative_to(source).parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(line=node.lineno, module=alias.name)
            case ast.ImportFrom():
                # One dot is the file's own folder, every further dot a folder up.
                base = folder[: max(0, len(folder) + 1 - node.level)] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                yield Import(line=node.lineno, module=module, names=tuple(alias.name for alias in node.names))
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(line=node.lineno, module=name)


def project_targets(statement: Import, source: Path) -> Iterator[str]:
    """The modules of the project that a statement reaches, relative to it: "core.solve", "core" or "__init__"."""
    inside = statement.module.split(".")[1:]
    for name in statement.names or ("",):
        parts = [*inside, name] if name else inside
        place = source.joinpath(*parts)
        # `from meq.core import solve` reaches a module when there is a file of that name, otherwise the package.
        is_module = bool(parts) and (place.is_dir() or place.with_suffix(".py").is_file())
        yield ".".join(parts if is_module or not name else inside) or "__init__"


def package_of(path: Path, source: Path) -> str:
    """The first part of a file's place in the project: "core" for core/solve.py, "cli" for cli.py."""
    return path.relative_to(source).with_suffix("").parts[0]


def complaint(statement: Import, package: str, source: Path, row: Row) -> str | None:
    """What is wrong with an import, or None."""
    top = statement.module.partition(".")[0]
    if top == source.name:
        for target in project_targets(statement, source):
            reached = (target, *(target.rsplit(".", depth)[0] for depth in range(1, target.count(".") + 1)))
            if reached[-1] != package and not row.project.intersection(reached):
                return f"{package} -> {target} is not allowed"
    elif top not in sys.stdlib_module_names and row.third_party is not None and top not in row.third_party:
        return f"{package} -> {top or 'outside the package'} (third party) is not allowed"
    return None


def violations(source: Path, table: dict[str, Row]) -> list[str]:
    """One line per import that the table does not allow, and per package that it does not know."""
    found = []
    for path in sorted(source.rglob("*.py")):
        package, place = package_of(path, source), path.relative_to(source.parent)
        if package not in table:
            found.append(f"{place}: package {package} has no row in the table")
            continue
        for statement in imports_of(path, source):
            if words := complaint(statement, package, source, table[package]):
                found.append(f"{place}:{statement.line}: {words}")
    return found


@pytest.fixture(scope="module")
def table() -> dict[str, Row]:
    return read_table(MAP.read_text(encoding="utf-8"))


def test_the_map_shows_every_room_and_no_other():
    tree = re.search(r"^## Rooms\n+```\n(.*?)^```$", MAP.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert tree, 'no tree under the heading "## Rooms"'
    shown = set(re.findall(r"^  (\w+)(?:/|\.py) ", tree[1], flags=re.MULTILINE))
    rooms = {package_of(path, SOURCE) for path in SOURCE.rglob("*.py")}
    assert shown == rooms - {"__main__", "version", "experiments"}


def test_every_place_that_the_map_names_is_there():
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", MAP.read_text(encoding="utf-8")))
    roots = (SOURCE, SOURCE.parent, ROOT)
    assert len(named) > 10
    assert not {place for place in named if not any((root / place).exists() for root in roots)}


def test_no_two_folders_of_a_package_import_each_other():
    arrows = set()
    for path in SOURCE.rglob("*.py"):
        here = path.relative_to(SOURCE).parts[:-1]
        for statement in imports_of(path, SOURCE):
            if statement.module.partition(".")[0] == SOURCE.name:
                for target in project_targets(statement, SOURCE):
                    there = tuple(target.split("."))
                    apart = next(
                        (at for at, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]), None
                    )
                    if apart is not None:
                        arrows.add((here[: apart + 1], there[: apart + 1]))
    assert arrows
    assert not {pair for pair in arrows if pair[::-1] in arrows}


def test_every_import_is_an_allowed_arrow(table):
    assert list(SOURCE.rglob("*.py")), f"no code under {SOURCE}"
    assert not violations(SOURCE, table)


def test_the_table_lets_no_plumbing_into_the_science(table):
    assert table.keys() >= SCIENCE | PLUMBING
    allowed = SCIENCE | {"version", "options", "registry", "lazy", "records", "showing"}
    for package in SCIENCE:
        reached = {target.partition(".")[0] for target in table[package].project}
        assert reached <= allowed, f"{package} may import {reached - allowed}"
        assert table[package].third_party is not None, f"{package} may import any third party"


def test_the_table_names_only_packages_that_have_a_row(table):
    for package, row in table.items():
        assert {target.partition(".")[0] for target in row.project} <= table.keys() - {package}


def test_the_table_has_no_cycles(table):
    arrows = {package: {target.partition(".")[0] for target in row.project} for package, row in table.items()}
    while free := {package for package, targets in arrows.items() if not targets & arrows.keys()}:
        arrows = {package: targets for package, targets in arrows.items() if package not in free}
    assert not arrows, f"packages that import one another: {sorted(arrows)}"


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [
        ("core/solve.py", "import meq.training", "meq/core/solve.py:1: core -> training is not allowed"),
        ("core/solve.py", "from ..analysis import spectrum", "core -> analysis.spectrum is not allowed"),
        ("core/solve.py", "from .. import analysis", "core -> analysis is not allowed"),
        ("core/__init__.py", "from ..analysis.spectrum import radius", "core -> analysis.spectrum is not allowed"),
        ("core/deep/inner.py", "from ...analysis import spectrum", "core -> analysis.spectrum is not allowed"),
        ("core/solve.py", "from .... import analysis", "core -> outside the package (third party)"),
        ("core/solve.py", "from meq import solve", "core -> __init__ is not allowed"),
        ("core/solve.py", "def late():\n    import meq.viz", "meq/core/solve.py:2: core -> viz is not allowed"),
        ("core/solve.py", "import numpy.linalg", "core -> numpy (third party) is not allowed"),
        ("core/solve.py", "import importlib\nimportlib.import_module('scipy')", "core -> scipy (third party)"),
        ("data/table.py", "from meq import options, core", "data -> core is not allowed"),
        ("data/table.py", "from meq.core import State", "data -> core is not allowed"),
        ("extras/new.py", "", "meq/extras/new.py: package extras has no row in the table"),
        ("stray.py", "", "meq/stray.py: package stray has no row in the table"),
    ],
)
def test_a_forbidden_import_is_reported_with_its_place(tmp_path, table, place, code, words):
    source = fake_tree(tmp_path, {place: code})
    (found,) = violations(source, table)
    assert words in found


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("core/solve.py", "import math, torch\nfrom . import state\nimport meq.options"),
        ("core/deep/inner.py", "from ..state import norm\nfrom torch.nn import functional"),
        ("analysis/spectrum.py", "from ..core import state\nfrom meq.core import State\nimport scipy.linalg"),
        ("data/table.py", "import pandas\nfrom meq import options\nfrom meq.options import known"),
        ("__init__.py", "from .core import solve\nfrom meq.analysis.spectrum import radius"),
        ("cli.py", "import meq\nfrom meq import viz"),
    ],
)
def test_an_allowed_import_is_not_reported(tmp_path, table, place, code):
    assert not violations(fake_tree(tmp_path, {place: code}), table)


def fake_tree(folder: Path, files: dict[str, str]) -> Path:
    """A package `meq` of empty modules, some of them replaced."""
    empty = ("__init__.py", "options.py", "core/state.py", "core/solve.py", "analysis/spectrum.py", "viz/__init__.py")
    for place, code in {**dict.fromkeys(empty, ""), **files}.items():
        path = folder / "meq" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
    return folder / "meq"


IMPORT_MEQ = """
import json, os, random, sys, warnings
import torch

def settings():
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "grad mode": torch.is_grad_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "cudnn": [torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32],
        "torch random state": torch.get_rng_state().tolist(),
        "python random state": hash(random.getstate()),
        "warning filters": len(warnings.filters),
        "environment": dict(os.environ),
    }

before = settings()
import meq
after = settings()
changed = [name for name in before if before[name] != after[name]]
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"changed": changed, "loaded": loaded}))
"""


@pytest.fixture(scope="module")
def fresh_import() -> dict[str, list[str]]:
    """What `import meq` changed and loaded, in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", IMPORT_MEQ], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, list[str]] = json.loads(done.stdout)
    return report


def test_importing_meq_loads_no_heavy_optional_package(fresh_import):
    assert "meq" in fresh_import["loaded"]
    assert not set(HEAVY).intersection(fresh_import["loaded"])


def test_importing_meq_changes_no_global_setting(fresh_import):
    assert not fresh_import["changed"]


OLD_NAMES = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from meq.experiments import Study, load_run
    from meq.experiments.runs.load import load_run as deep
import meq.runs.load, meq.studies
assert load_run is deep is meq.runs.load.load_run and Study is meq.studies.Study
assert meq.runs.load.__spec__.name == "meq.runs.load", meq.runs.load.__spec__
assert [each.category for each in caught] == [DeprecationWarning], caught
assert "meq.studies" in str(caught[0].message)
try:
    from meq.experiments import Nonsense
except ImportError as error:
    assert "Nonsense" in str(error)
else:
    raise AssertionError("a name that never was is found")
"""


def test_the_old_name_of_studies_and_runs_finds_the_same_objects_and_warns():
    done = subprocess.run([sys.executable, "-c", OLD_NAMES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
