"""Names of components: taken once, listed without imports, and answered with the nearest one when mistyped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meq import registry
from meq.registry import Registry

PLUGGED: Registry[Any] = Registry("function")

Number = Callable[[float], float]


@pytest.fixture
def functions() -> Registry[Number]:
    return Registry("function", {"root": "math:sqrt"})


def test_a_decorated_function_is_found_by_its_name_and_stays_itself(functions: Registry[Number]) -> None:
    @functions.register("double")
    def double(x: float) -> float:
        return 2 * x

    assert double(3.0) == functions.get("double")(3.0) == 6.0
    assert functions.names() == ["root", "double"]
    assert functions.name_of(double) == "double"
    assert "double" in functions
    assert len(functions) == 2
    assert list(functions) == ["root", "double"]
    assert functions["double"] is double
    assert [function(9.0) for _, function in functions.items()] == [3.0, 18.0]


@pytest.mark.usefixtures("unchecked")
def test_a_name_is_taken_once(functions: Registry[Number]) -> None:
    double = functions.register("double")(lambda x: 2 * x)
    with pytest.raises(ValueError, match="there is a function 'double' already"):
        functions.register("double")(double)
    with pytest.raises(ValueError, match="there is a function 'root' already: choose another name"):
        functions.register("root")(abs)
    with pytest.raises(TypeError, match="the name of a function must be text"):
        functions.register(abs)  # type: ignore[arg-type]


def test_an_unknown_name_is_answered_with_the_nearest(functions: Registry[Number]) -> None:
    with pytest.raises(ValueError, match=r"there is no function 'rot': did you mean 'root'\? Known: root\."):
        functions.get("rot")
    with pytest.raises(LookupError):
        Registry("function", error=LookupError).get("rot")


def test_an_entry_given_as_text_is_imported_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    texts: Registry[str] = Registry("text", {"zen": "this:s"})
    assert texts.names() == ["zen"]
    assert "this" not in sys.modules
    assert texts.get("zen").startswith("Gur Mra")


def test_a_module_may_register_what_is_listed_as_text_already() -> None:
    names: Registry[type] = Registry("error", {"lookup": "builtins:LookupError"})
    names.register("lookup")(LookupError)
    assert names.get("lookup") is LookupError
    assert names.name_of(LookupError) == "lookup"


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported by the name `my_plugin`."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "my_plugin.py"
    sys.modules.pop("my_plugin", None)
    registry._LOADED.discard("my_plugin")


def test_plugins_are_imported_before_a_registry_is_read(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.write_text("from test_registry import PLUGGED\nassert not len(PLUGGED)\nPLUGGED.add('mine', len)\n")
    monkeypatch.setitem(sys.modules, "test_registry", sys.modules[__name__])
    assert PLUGGED.names() == []
    monkeypatch.setenv("MEQ_PLUGINS", "my_plugin")
    assert PLUGGED["mine"] is len
    PLUGGED.remove("mine")


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No module named 'my_plugin'"), ("1 / 0", "ZeroDivisionError: division by zero")],
)
def test_a_plugin_that_cannot_be_imported_is_named(
    content: str | None, words: str, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        plugin.write_text(content)
    monkeypatch.setenv("MEQ_PLUGINS", "my_plugin")
    for _ in range(2):  # it is not taken for loaded after the first error
        with pytest.raises(ImportError, match=f"the plugin 'my_plugin' cannot be imported: .*{words}"):
            PLUGGED.names()


def test_an_entry_can_be_forgotten(functions: Registry[Number]) -> None:
    functions.remove("root")
    assert functions.names() == []


BROKEN_PLUGIN = """
from meq.data import register_data_set

@register_data_set("broken", summary="fails", metric="accuracy", embedded=True)
def broken():
    return {}["nothing"]
"""


def test_a_plugin_that_fails_is_named_and_keeps_its_traceback(plugin: Path) -> None:
    plugin.write_text(BROKEN_PLUGIN)
    command = [sys.executable, "-m", "meq", "--plugin", "my_plugin", "data", "check", "broken"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=plugin.parent)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: the plugin my_plugin failed; its author may need the lines below\n")
    assert "KeyError: 'nothing'" in done.stderr
    assert "bug in meq" not in done.stderr
