"""What to read, from what Python callers give: a path, a name or a table in memory, and columns of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meq.data.findings import DataError
from meq.data.frames import TABLE, Frame, FrameFile, frame_of, unreadable
from meq.data.request import DataRequest
from meq.records import sha256

Columns = str | Sequence[str]
"""One column, or several."""


def request_of(
    data: Any,
    columns: Mapping[str, Columns],
    *,
    folder: Path,
    label: str | None = None,
    split: str | None = None,
    group: str | None = None,
    task: str | None = None,
    root: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
) -> DataRequest:
    """The request for a table, or for a data set by its name; `columns` are by kind: image, text, audio, vector.

    A table in memory is written into the folder, where it is found again; its paths start from `root`, or else from the
    current folder.
    """
    table, start = frame_of(data), None if root is None else Path(root)
    if table is not None:
        file = _written(table, folder)
        data, start = file.path, start or file.root or Path.cwd()
    elif not isinstance(data, str | Path):
        raise unreadable(data)
    several: dict[str, Any] = {
        f"{kind}s": (names,) if isinstance(names, str) else tuple(names) for kind, names in columns.items()
    }
    return DataRequest(
        data=str(data),
        root=start,
        **several,
        label=label,
        split=split,
        group=group,
        task=task,
        options=dict(options or {}),
    )


def _written(table: Frame, folder: Path) -> FrameFile:
    """The table in the folder; an error if the folder has one of other rows already."""
    if (folder / TABLE).is_file():
        with TemporaryDirectory(prefix="meq-frame-") as scratch:
            if sha256(table.write(Path(scratch)).path) != sha256(folder / TABLE):
                raise DataError(f"{folder} was made from other rows than {table.what} has: choose another folder")
    return table.write(folder)
