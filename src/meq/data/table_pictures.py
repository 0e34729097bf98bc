"""The pictures or sounds of a table: relative paths below one folder, looked up without a look at the disk for each."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import NamedTuple

URL = re.compile(r"^([a-z][a-z0-9+.-]+://|data:)", re.IGNORECASE)
ABSOLUTE = re.compile(r"[/\\]|[a-z]:[/\\]", re.IGNORECASE)
"""On any system: a table that is refused on one must not be read on another."""
MISSED = 20


class Trouble(NamedTuple):
    """Why a file cannot be used: the kind of finding, and the message."""

    kind: str
    message: str


class Pictures:
    """The folder below which all pictures of a table lie, or all sounds (`noun`); every folder in it is listed once."""

    def __init__(self, root: Path, *, noun: str = "picture") -> None:
        self.root, self.noun = root, noun
        self.true_root = root.resolve()
        self.roots = (os.path.abspath(root), str(self.true_root))
        self.any_found = False
        self.missed: list[str] = []
        """The first names that could not be used, for advice on what is wrong with all of them."""
        self.folders: dict[str, dict[str, bool | None] | Trouble] = {}
        self.found: dict[str, tuple[str, Trouble | None]] = {}

    def find(self, name: str) -> tuple[str, Trouble | None]:
        """The name in its plain form, `a.jpg` for `./a.jpg`, and what is wrong with it.

        Two rows hold the same file if the plain forms are the same.
        """
        if name not in self.found:
            self.found[name] = self._find(name)
            if self.found[name][1] is None:
                self.any_found = True
            elif len(self.missed) < MISSED:
                self.missed.append(name)
        return self.found[name]

    def _find(self, name: str) -> tuple[str, Trouble | None]:
        name = self._relative(name)
        trouble = self._refused(name)
        if trouble is not None:
            return name, trouble
        path = posixpath.normpath(name)
        parent, file = posixpath.split(path)
        folder = self._folder(parent)
        if isinstance(folder, Trouble):
            return name, folder
        if file not in folder:
            hint = "; write paths with /" if "\\" in name else ""
            return name, Trouble(f"missing {self.noun}", f"there is no {self.noun} {name!r} below {self.root}{hint}")
        is_symlink = folder[file]
        if is_symlink is None:
            return name, Trouble("wrong path", f"{name!r} is a pipe, a socket or a device, not a {self.noun}")
        return path, self._follow(path) if is_symlink else None

    def _relative(self, name: str) -> str:
        """An absolute path below the root as the relative one; any other name as it is."""
        if not os.path.isabs(name) or ".." in re.split(r"[/\\]", name):
            return name
        plain = os.path.normpath(name)
        for root in self.roots:
            if plain.startswith(root.rstrip(os.sep) + os.sep):
                return os.path.relpath(plain, root).replace(os.sep, "/")
        return name

    def _refused(self, name: str) -> Trouble | None:
        if URL.match(name):
            return Trouble(
                "wrong path", f"{name[:80]!r} is an address; download the {self.noun} and give the file's path"
            )
        if ABSOLUTE.match(name):
            return Trouble(
                "path outside",
                f"{name!r} is an absolute path outside of {self.root}; set root to a folder that holds it",
            )
        if ".." in name and ".." in re.split(r"[/\\]", name):
            return Trouble(
                "path outside", f"{name!r} goes up with '..', which is not followed; set root to a folder above"
            )
        if "\0" in name:
            return Trouble("wrong path", f"{name!r} is no file name")
        return None

    def _follow(self, path: str) -> Trouble | None:
        if not self._inside(path):
            return self._outside(path)
        if not (self.root / path).is_file():
            return Trouble(f"missing {self.noun}", f"{path!r} is a symlink that leads to no file")
        return None

    def _folder(self, name: str) -> dict[str, bool | None] | Trouble:
        """The files of a folder, each with whether it is a symlink, None for what is neither; none without a folder."""
        if name not in self.folders:
            self.folders[name] = self._list(name)
        return self.folders[name]

    def _list(self, name: str) -> dict[str, bool | None] | Trouble:
        if not self._inside(name):
            return self._outside(name)
        try:
            with os.scandir(self.root / name) as entries:
                return {entry.name: _is_link(entry) for entry in entries if not entry.is_dir(follow_symlinks=False)}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            return Trouble(f"missing {self.noun}", f"the folder {name!r} cannot be read: {error.strerror}")

    def _inside(self, name: str) -> bool:
        try:
            return (self.root / name).resolve().is_relative_to(self.true_root)
        except (OSError, RuntimeError):  # a circle of symlinks leads nowhere
            return False

    def _outside(self, name: str) -> Trouble:
        return Trouble("path outside", f"{name!r} is a symlink that leads outside of {self.root}, and is not followed")


def _is_link(entry: os.DirEntry[str]) -> bool | None:
    """None for pipes, sockets and devices, which are never opened."""
    if entry.is_symlink():
        return True
    return False if entry.is_file(follow_symlinks=False) else None
