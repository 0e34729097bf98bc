"""Files that appear whole or not at all, and folders that one process at a time works in."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

UNLOCKABLE = (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL)
"""What file systems without such locks say, network ones of folders among them."""


class BusyError(ValueError):
    """Another process is at work in the same folder; the message names it and says what to do."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, then rename over it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, content: Any) -> None:
    """For files that only this program reads back; records are written by `plain.dumps`, which is strict."""
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone(path: Path, words: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a file or a folder for this process. Where another one holds it: wait so many seconds, then a BusyError."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # network file systems want it writable
    try:
        deadline = time.monotonic() + patience
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise BusyError(words)
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Whether the lock is ours now, or there are no locks here."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNLOCKABLE:
            raise
    return True
