"""Packages that import their parts on use look, to users and to tools, as if they had imported them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import meq

LAZY = ["meq", "meq.core", "meq.data", "meq.encoders", "meq.runs", "meq.sklearn", "meq.studies", "meq.training"]
LAZY += ["meq.viz.report"]
LIGHT = ["meq.records", "meq.tables", "meq.cli.root", "meq.core.registry", "meq.training.arms", "meq.training.config"]
LIGHT += [
    "meq.training.record",
    "meq.data.request",
    "meq.encoders.catalogue",
    "meq.studies.study",
    "meq.studies.recipes",
]
HEAVY = ("torch", "transformers", "pyarrow", "accelerate", "matplotlib", "scipy", "pandas", "sklearn")


def loaded_after(code: str) -> set[str]:
    """The third-party packages that a new interpreter has loaded after some lines."""
    last = "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + last], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1])) & set(HEAVY)


@pytest.mark.parametrize("package", LAZY)
def test_every_public_name_is_found_and_listed(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        getattr(module, name)
    with pytest.raises(AttributeError, match=f"module {package!r} has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


def test_importing_packages_loads_nothing_heavy() -> None:
    assert not loaded_after(f"import {', '.join([*LAZY, 'meq.options', 'meq.registry', *LIGHT])}")


def test_the_module_alone_loads_neither_the_command_line_nor_what_trains() -> None:
    heavy = ("accelerate", "pyarrow", "typer", "rich", "pandas", "datasets", "sklearn", "transformers")
    code = f"import sys, meq; meq.MutualEquilibrium; meq.solve; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("first", ["import meq.core.solve", "from meq.core.solve import solve", "import meq"])
def test_a_function_is_not_hidden_by_the_module_of_its_name(first: str) -> None:
    code = f"{first}\nimport meq\nassert callable(meq.core.solve) and meq.core.solve is meq.solve\n"
    loaded_after(code + "from meq.core import solve\nassert solve is meq.solve\n")


def test_submodules_need_no_import_of_their_own() -> None:
    loaded_after("import meq\nassert meq.models.blocks and meq.analysis.spectrum and meq.core.register_solver")


def test_a_test_can_replace_a_name_and_put_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(meq, "solve", 1)
        assert meq.solve == 1  # type: ignore[comparison-overlap]
    assert callable(meq.solve)
