"""Files that appear whole or not at all, hashes, folders that one process at a time works in, and room on the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

UNLOCKABLE = (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL)
"""What file systems without such locks say, network ones of folders among them."""
POSIX = os.name == "posix"
"""Windows opens no folders, flushes only files that may be written to, and locks files by forbidding to read them."""
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # Windows knows no quota
FULL_WORDS = ("No space left on device", "Disk quota exceeded")
"""How the same is said by libraries that pass on the system's words only, as safetensors does."""


class BusyError(ValueError):
    """Another process is at work in the same folder; the message names it and says what to do."""


class NoSpaceError(OSError):
    """The disk is full; the message names the folder, how much is free, and what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(errno.ENOSPC, FULL_WORDS[0])
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence

    def __reduce__(self) -> tuple[type[NoSpaceError], tuple[str]]:
        return NoSpaceError, (self.sentence,)


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, then rename over it. A full disk is a NoSpaceError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        if not is_full(error):
            raise
        raise NoSpaceError(
            f"{path} ({in_bytes(len(content))}) could not be written: {room_in_words(path)}. What was there before is "
            "untouched: make room, and the same command goes on"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk; Windows flushes folders itself."""
    if not POSIX and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(left_over: Iterable[Path]) -> None:
    """Delete files and folders that a killed process left half-written."""
    for path in list(left_over):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


# -- room on the disk --------------------------------------------------------------------------------------------------


def is_full(error: BaseException | None) -> bool:
    """Whether the error, or one that it was raised from, says that the disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if any(words in str(error) for words in FULL_WORDS):
            return True
        error = error.__cause__
    return False


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of a file or folder, which need not exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def room_in_words(path: Path) -> str:
    return f"{FULL_WORDS[0]}, {in_bytes(free_bytes(path))} are free on the disk of {path.parent}"


def in_bytes(size: float) -> str:
    """A number of bytes as text, such as "3.4 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


# -- one process at a time ---------------------------------------------------------------------------------------------


class _Held(threading.local):
    """The locks of this thread, as (process, device, inode): a fork copies the set, and then the process differs."""

    def __init__(self) -> None:
        self.places: set[tuple[int, int, int]] = set()


_held = _Held()


@contextmanager
def alone(path: Path, words: str, *, patience: float = 0.0) -> Iterator[bool]:
    """Lock a file or a folder for this process. If another one holds it, wait `patience` seconds, then a BusyError.

    A thread that holds the lock may take it again, as a study does that trains a run; the outer block keeps it. Yields
    whether there is a lock at all: some file systems have none. On Windows it keeps out processes of the same user on
    the same machine, and no others.
    """
    handle = _opened(path)
    place = (os.getpid(), *_identity(os.fstat(handle)))
    try:
        if place in _held.places:
            yield True
            return
        deadline = time.monotonic() + patience
        while (locked := _locked(handle)) is False:
            if time.monotonic() > deadline:
                raise BusyError(words)
            time.sleep(0.1)
        _held.places.add(place)
        try:
            yield locked is True
        finally:
            _held.places.discard(place)
    finally:
        os.close(handle)


def _opened(path: Path) -> int:
    """What is locked: the file or folder itself, or on Windows a file among the temporary ones that stands for it."""
    if POSIX:
        return os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # network file systems want it writable
    folder = Path(tempfile.gettempdir()) / "meq-locks"
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(os.path.normcase(path.resolve(strict=True)).encode()).hexdigest()
    return os.open(folder / name, os.O_RDWR | os.O_CREAT)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def same_place(path: Path, stat: os.stat_result) -> bool:
    """Whether a path still leads to the same file or folder as when `stat` was taken."""
    try:
        return _identity(path.stat()) == _identity(stat)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _locked(handle: int) -> bool | None:
    """Try to lock: True if it worked, False if another process holds the lock, None if there are no locks here."""
    if not POSIX:
        return _locked_on_windows(handle)
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNLOCKABLE:
            raise
        return None
    return True


def _locked_on_windows(handle: int) -> bool:
    import msvcrt

    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EDEADLK):
            raise
        return False
    return True
