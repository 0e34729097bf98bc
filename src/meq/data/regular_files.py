"""Files that strangers name: only regular files are opened, since a pipe never ends and a device has no end.

The size is known before anything is read, so that a limit is a sentence and not a machine without memory.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from meq.data.findings import DataError

CHUNK = 2**20
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, *, most: int | None = None) -> BinaryIO:
    """The file, open for reading bytes. Anything but a regular file of at most `most` bytes is a DataError.

    A missing file stays a FileNotFoundError, so that the caller can say what is missing.
    """
    _check_regular(path, os.stat(path))  # before it is opened: opening alone can already start a device
    # without O_NONBLOCK, a pipe that took the file's place in between would hold us until somebody writes into it
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(handle, "rb")
    try:
        found = os.fstat(handle)
        _check_regular(path, found)
        if most is not None and found.st_size > most:
            raise DataError(f"{path}: {found.st_size:,} bytes, more than the {most:,} that are read")
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, *, most: int) -> bytes:
    """All bytes of a regular file that has at most so many."""
    with open_regular(path, most=most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # a file that grows meanwhile is not followed


def sha256_of(path: Path, *, most: int) -> str:
    """The hash of a regular file, read piece by piece."""
    digest = hashlib.sha256()
    with open_regular(path, most=most) as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def _check_regular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    what = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "something else")
    raise DataError(f"{path}: this is {what}, not a file")
