"""SECURITY.md promises nothing without a test: every row of its table names tests, and they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def promises() -> dict[str, list[str]]:
    """By promise: the tests of its row, as `path::name`."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return {cells[0].strip(): re.findall(r"`(tests/[\w/]+\.py::\w+)`", cells[1]) for cells in rows[1:]}


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_at_least_one_test_and_all_of_them_exist() -> None:
    found = promises()
    assert len(found) >= 15
    for promise, tests in found.items():
        assert tests, f"no test is named for: {promise}"
        for test in tests:
            path, name = test.split("::")
            assert (ROOT / path).is_file(), f"{promise}: there is no {path}"
            assert name in functions_of(path), f"{promise}: {path} has no {name}"
