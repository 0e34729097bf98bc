"""Paths that a data file names: none leaves its folder, and whether one exists costs no look at the disk."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from meq.data.content import PictureFile
from meq.data.findings import DataError
from meq.data.jsonl import BadRowError

_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")


class Tree:
    """The files below a folder by their path in it; each sub-folder is listed once, when it is first asked about."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self._listed: dict[str, frozenset[str]] = {}

    def __contains__(self, name: str) -> bool:
        parent, _, file = name.rpartition("/")
        if parent not in self._listed:
            folder = self.folder / parent
            self._listed[parent] = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
        return file in self._listed[parent]

    def check_picture(self, name: str) -> str:
        """The name, if it stays below the folder and the picture is there."""
        if check_inside(name) not in self:
            raise BadRowError("missing picture", f"the picture {name!r} is not in {self.folder}")
        return name

    def picture(self, name: str) -> PictureFile:
        """A picture; that a symlink on its way does not leave the root is checked when it is opened."""
        return PictureFile(self.folder / name, self.root)


def check_inside(name: str) -> str:
    """The path, if it is relative and never goes up; both kinds of slash count, whatever the system."""
    if _ABSOLUTE.match(name) or ".." in re.split(r"[/\\]", name) or "\0" in name:
        raise BadRowError(
            "path outside", f"the path {name!r} leads outside of the data set's folder, and is not followed"
        )
    return name


def first_of(root: Path, names: Sequence[str]) -> Path | None:
    """The first of these paths below the root that exists."""
    return next((root / name for name in names if (root / name).exists()), None)


def need_one_of(root: Path, names: Sequence[str], *, what: str) -> Path:
    """The first of these paths below the root that exists; an error that lists them if none does."""
    found = first_of(root, names)
    if found is None:
        raise DataError(f"{root}: {what} not found; looked for {', '.join(names)}")
    return found
