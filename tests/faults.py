"""Faults at the file mutations of a process: killed, or met with a full disk, at the n-th one below a folder.

A mutation is a file opened for writing, a rename, a removal, a folder made or removed, as Python's audit events tell
them; the process ends, or the error comes, just before it happens. Writing done by native code is not seen, but the
rename after it is. Two ways to use it:

- `in_child(action, under=folder, kind="kill", at=n)` forks, for cases that a plain interpreter runs (`plain.py`): it
  has everything imported once, and must not have taken gradients before;
- `python tests/faults.py study run ...` is the command line `meq study run ...` with the fault that MEQ_FAULT says, for
  example "kill 17 FOLDER", "full 17 FOLDER" or "count 0 FOLDER". `command` makes arguments and environment for that.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULT = "MEQ_FAULT"
KINDS = ("count", "kill", "full")
COUNTED = "mutations: "
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.rename": 2,
    "os.remove": 1,
    "os.mkdir": 1,
    "os.rmdir": 1,
    "os.truncate": 1,
    "os.link": 2,
    "os.symlink": 2,
}
"""By audit event, how many of its first arguments are paths; `os.replace` is a rename, `unlink` a removal."""
NEEDS_ROOM = ("open", "os.mkdir")
"""What a full disk refuses; renaming and removing go on."""


class Mutations:
    """An audit hook that counts the mutations below a folder, and strikes at one of them. It cannot be taken off."""

    def __init__(self, under: Path, kind: str = "count", at: int = 0) -> None:
        if kind not in KINDS:
            raise ValueError(f"there is no fault {kind!r}: {', '.join(KINDS)}")
        self.under, self.kind, self.at = os.path.abspath(under), kind, at
        self.count = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        paths = _written(event, arguments)
        if not any(self._below(path) for path in paths):
            return
        self.count += 1
        if self.kind == "kill" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "full" and self.count >= self.at and event in NEEDS_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), paths[0])

    def _below(self, path: str) -> bool:
        whole = os.path.abspath(path)
        return whole == self.under or whole.startswith(self.under + os.sep)


def watch(under: Path, kind: str = "count", at: int = 0) -> Mutations:
    """From now on, in this process and what it forks: count, `kill` at the n-th mutation, or `full` from it on."""
    mutations = Mutations(under, kind, at)
    sys.addaudithook(mutations)
    return mutations


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended: its exit code (negative for a signal) and how many mutations it made, if it lived to say."""

    code: int
    mutations: int | None

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


def in_child(action: Callable[[], object], *, under: Path, kind: str = "count", at: int = 0) -> Ended:
    """Do it in a fork of this process, with the fault. An error of the action is printed, and exits with 1."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os._exit(_act(action, watch(under, kind, at), writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(code=code, mutations=int(said) if said else None)


def command(*arguments: str | Path, under: Path, kind: str = "count", at: int = 0) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment for a subprocess that is `meq ARGUMENTS` with this fault."""
    environment = {**os.environ, FAULT: f"{kind} {at} {os.path.abspath(under)}"}
    return [sys.executable, __file__, *map(str, arguments)], environment


def counted(said: str) -> int:
    """How many mutations there were, from the last line that a process of `command` has written to stderr."""
    return int(said.rsplit(COUNTED, 1)[1].split()[0])


def _act(action: Callable[[], object], mutations: Mutations, writing: int) -> int:
    code = 0
    try:
        action()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = 1
    os.write(writing, str(mutations.count).encode())
    return code


def _written(event: str, arguments: tuple[Any, ...]) -> list[str]:
    """The paths that an audit event is about to change; file descriptors are left out."""
    if event == "open":
        path, mode, flags = arguments
        changes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & WRITING)
        found = [path] if changes else []
    else:
        found = list(arguments[: CHANGES.get(event, 0)])
    return [os.fsdecode(path) for path in found if isinstance(path, str | bytes | os.PathLike)]


def _main() -> None:
    kind, at, under = os.environ[FAULT].split(" ", 2)
    mutations = watch(Path(under), kind, int(at))
    sys.argv[0] = "meq"
    from meq.cli import app

    try:
        app()
    finally:
        print(f"{COUNTED}{mutations.count}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    _main()
