"""The data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.findings import DataError, Findings
from meq.data.statements import statements


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set one can ask for by name."""

    read: Callable[..., DataSet]
    """read(root, findings=..., **options), or read(**options) for a set that needs no folder."""
    summary: str
    metric: str
    embedded: bool = False
    """Comes with the package, or with one from PyPI: there is no folder to point at."""

    @property
    def options(self) -> list[str]:
        return [name for name in inspect.signature(self.read).parameters if name not in ("root", "findings")]


DATA_SETS: Mapping[str, Entry] = {
    "statements": Entry(
        read=statements, summary="grids of shapes and statements, already features", metric="accuracy", embedded=True
    ),
}


def open_data(
    name: str, root: Path | str | None = None, *, findings: Findings | None = None, **options: Any
) -> DataSet:
    """The data set of that name, read from its folder; nothing is encoded and no picture is opened yet.

    `findings` decides what a bad row does: raise, which is the default, or be skipped and counted.
    """
    if name not in DATA_SETS:
        raise DataError(f"there is no data set {name!r}: {nearest(name, DATA_SETS)}")
    entry = DATA_SETS[name]
    for option in options:
        if option not in entry.options:
            raise DataError(f"the data set {name!r} has no option {option!r}: {nearest(option, entry.options)}")
    if entry.embedded:
        if root is not None:
            raise DataError(f"{name!r} is generated or installed, it has no folder; got {root}")
        return entry.read(**options)
    if root is None:
        raise DataError(f"{name!r} lies in a folder of yours: give its path (see: meq data list)")
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; {name!r} is read from the folder that holds its files")
    return entry.read(root, findings=findings if findings is not None else Findings(), **options)
