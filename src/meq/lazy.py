"""Packages that import their parts when they are asked for, so that `meq --help` need not wait for torch."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def make_lazy(package: str) -> None:
    """Let a package import each of its public names when it is first used.

    The names stand once, as import lines that a type checker reads too:

        if TYPE_CHECKING:
            from meq.core.solvers import Anderson, Damped
        else:
            make_lazy(__name__)

    Submodules are found as well: `import meq; meq.core.solve` needs no import of `meq.core`.
    """
    module = sys.modules[package]
    module.__dict__["_homes"] = _written_imports(module)
    module.__class__ = LazyPackage


class LazyPackage(ModuleType):
    """A package whose names live in the modules that `_homes` tells."""

    _homes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            value = getattr(importlib.import_module(self._homes[name]), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"{self.__name__}.{name}"):
            value = importlib.import_module(f"{self.__name__}.{name}")
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets `meq.core.solve` to the module when that is imported; users mean the function of that name.
        if name in self._homes and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._homes})


def _written_imports(package: ModuleType) -> dict[str, str]:
    """By name: the module that a package's own `if TYPE_CHECKING:` block imports it from."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
