"""Docstrings teach: every public object has an example, and every example in a docstring runs."""

from __future__ import annotations

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_docs import write_table

import meq

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "meq"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PLAIN = {"__version__"}
"""Public, and no object to explain."""


def docstrings(path: Path) -> Iterator[tuple[str, str, int]]:
    """Name, text and line of every docstring of a file, those below an assignment included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node.name, text, node.lineno
    for before, node in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield ast.unparse(before.targets[0]), str(node.value.value), node.lineno


TAUGHT = {
    f"{path.relative_to(SOURCE).with_suffix('')}:{name}": (text, path, line)
    for path in sorted(SOURCE.rglob("*.py"))
    for name, text, line in docstrings(path)
    if ">>>" in text
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The folder of a reader who has a table, and has trained on it."""
    folder = tmp_path_factory.mktemp("reader")
    write_table(folder)
    columns = {"image": "photo", "text": "caption", "label": "y"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # an example shows how to ask, and not how sure the answer is
        patch.setattr(importlib.import_module("meq.studies.compare"), "DRAWS", 20)
        meq.train("photos.csv", **columns, dim=16, heads=2, epochs=1, out="runs/photos", **BUILT_IN)
        yield


BUILT_IN = {"image_encoder": "patches", "text_encoder": "words"}


@pytest.mark.parametrize("name", TAUGHT)
def test_the_example_of_a_docstring_runs(name: str, reader: None) -> None:
    text, path, line = TAUGHT[name]
    torch.manual_seed(0)
    example = doctest.DocTestParser().get_doctest(text, {"meq": meq, "torch": torch}, name, str(path), line)
    said: list[str] = []
    failed, tried = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=said.append)
    assert tried > 0
    assert not failed, "".join(said)


@pytest.mark.parametrize("name", sorted({*meq.__all__} - PLAIN))
def test_every_public_object_has_a_docstring_with_an_example(name: str) -> None:
    assert [place for place in TAUGHT if place.endswith(f":{name}")]


def test_an_example_that_is_wrong_is_found() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(wrong, out=lambda said: None).failed == 1
