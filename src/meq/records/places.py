"""Places that results go to, asked at the outset: can they be written, and is there room?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from meq.records.files import free_bytes, in_bytes

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
