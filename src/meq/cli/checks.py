"""Asked at the outset, before anything that takes long: places that results go to, files they come from, devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from meq.data.request import DATA_SETS, DataRequest, nearest_beside
from meq.data.table_files import TABLE_SUFFIXES, is_table
from meq.options import nearest
from meq.records import free_bytes, in_bytes

LEAST = 2**24
"""Free bytes that any result needs, however small: below it a disk counts as full."""


def check_folder(folder: Path, option: str) -> None:
    """An error if results cannot go into that folder, which need not be there yet."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{option} {folder}: that is a file, and a folder is needed")
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise ValueError(f"{option} {folder}: {place} is a file, so there can be no folder below it")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"{option} {folder}: nothing may be written to {place}; choose another folder")
    free = free_bytes(place)
    if free < LEAST:
        raise ValueError(
            f"{option} {place}: {in_bytes(free)} are free on its disk, and about {in_bytes(LEAST)} are needed; make "
            "room, or choose another place"
        )


def check_file(file: Path, option: str, *, suffixes: Sequence[str] = ()) -> None:
    """An error if a result cannot be written to that file; its folder need not be there yet."""
    if suffixes and file.suffix.lower() not in suffixes:
        raise ValueError(f"{option} {file}: the name must end in {' or '.join(suffixes)}")
    if file.is_dir():
        raise ValueError(f"{option} {file}: that is a folder; name a file, such as {file / ('a' + (*suffixes, '')[0])}")
    if file.exists() and not os.access(file, os.W_OK):
        raise ValueError(f"{option} {file}: it is there and may not be written over; choose another name")
    check_folder(file.parent, option)


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


def check_device(device: str | None) -> None:
    """An error if this machine has no such device."""
    if device is None:
        return
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"there is no device {device!r}: {nearest(device, _devices())}") from error
    if kind not in _devices():
        raise ValueError(f"this machine has no device {device!r}: {nearest(kind, _devices())}")
    count = torch.accelerator.device_count() if kind != "cpu" else 1
    if (torch.device(device).index or 0) >= count:
        raise ValueError(f"this machine has no device {device!r}: it has {count} of the kind {kind!r}")


def _devices() -> list[str]:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ["cpu", *([] if accelerator is None else [accelerator.type])]
