"""The old name of `meq.studies` and `meq.runs`, until 0.3: every name and module of theirs is found here too."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OLD = "meq.experiments"


def new_name(old: str) -> str:
    """Where a module of the old package is now."""
    inside = old.removeprefix(f"{OLD}.")
    if inside == "cost.run":
        return "meq.runs.cost"
    return f"meq.{inside}" if inside.split(".")[0] == "runs" else f"meq.studies.{inside}"


class OldNames(MetaPathFinder, Loader):
    """Finds `meq.experiments.x` as the very module that `x` is now, so that classes stay the same classes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(f"{OLD}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(new_name(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back; it ran when it was imported under its own name."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def __getattr__(name: str) -> Any:
    for package in ("meq.studies", "meq.runs"):
        if hasattr(module := import_module(package), name):
            return getattr(module, name)
    raise AttributeError(f"module {OLD!r} has no attribute {name!r}")


warnings.warn(
    "meq.experiments is now meq.studies and, for trained runs, meq.runs; the old name goes with 0.3",
    DeprecationWarning,
    stacklevel=2,
)
if not any(isinstance(each, OldNames) for each in sys.meta_path):
    sys.meta_path.insert(0, OldNames())
