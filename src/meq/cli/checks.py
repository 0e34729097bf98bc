"""Asked at the outset, before anything that takes long: places that results go to, files they come from, devices."""

from __future__ import annotations

from pathlib import Path

from meq.data.request import DATA_SETS, DataRequest, nearest_beside
from meq.data.table_files import TABLE_SUFFIXES, is_table
from meq.records import check_file, check_folder

__all__ = ["check_data", "check_file", "check_folder", "check_table", "check_there"]


def check_table(path: Path | str) -> None:
    """An error if there is no such table; the nearest name beside it is told."""
    path = Path(path)
    if path.is_file() and is_table(path):
        return
    if path.is_dir() or path.is_file():
        raise ValueError(f"{path}: a table is a file that ends in {', '.join(TABLE_SUFFIXES)}")
    raise ValueError(f"{path}: there is no such file{nearest_beside(path)}")


def check_data(data: str | None, root: Path | None) -> None:
    """An error if neither a table nor a data set is called that, or its folder is not there; None is the run's own."""
    if data is not None and is_table(data):
        check_table(data)
    elif data is not None and data not in DATA_SETS:
        DataRequest(data=data).check()
    if root is not None:
        check_there(root, "folder")


def check_there(path: Path, what: str) -> None:
    """An error if that file or folder is not there."""
    if not path.exists():
        raise ValueError(f"{path}: the {what} is missing{nearest_beside(path)}")
