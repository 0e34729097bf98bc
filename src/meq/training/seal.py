"""The seals of a run: `seal.json` beside the record, and another one beside the weights.

Each holds the hash of every file that it vouches for, and one of itself. The run's own names the model's, so that a
byte changed anywhere in the folder is found, and so that a model that lies on the Hub alone is checked as well. A seal
is written before the file that says that all is done (the record, the task): a finished run is a sealed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from meq.files import sha256
from meq.training.plain import FormatError
from meq.training.sealed import read_sealed, write_sealed

SEAL = "seal.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """One file."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Seal:
    """What a folder held when it was sealed. Files that are not named here are nobody's business."""

    schema: int = SCHEMA
    files: Mapping[str, SealedFile]
    """By path, relative to the folder, with forward slashes."""


def write_seal(folder: Path, names: Iterable[str], *, to_come: Mapping[str, bytes] | None = None) -> None:
    """Seal files that lie in the folder, and such as will be written to it next."""
    files = {name: SealedFile(sha256=sha256(folder / name), size=(folder / name).stat().st_size) for name in names}
    for name, content in (to_come or {}).items():
        files[name] = SealedFile(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    write_sealed(folder / SEAL, Seal(files=dict(sorted(files.items()))))


def read_seal(folder: Path) -> Seal | None:
    """The seal of a folder; None where there is none, as in those of older versions."""
    path = folder / SEAL
    if not path.is_file():
        return None
    seal = read_sealed(Seal, path)
    if seal.schema > SCHEMA:
        raise FormatError(f"{path}: written in format {seal.schema}, this version of meq reads up to {SCHEMA}")
    for name in seal.files:
        # by its name alone: the Hub's cache keeps every file behind a link, and what a link leads to has a hash
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or PureWindowsPath(name).drive or "\\" in name:
            raise FormatError(f"{path}: {name!r} leads outside of the folder")
    return seal


def check_seal(folder: Path, *, may_lack: Iterable[str] = ()) -> Seal | None:
    """The seal, if every file is as it was sealed; an error names those that are not. None where there is no seal."""
    seal = read_seal(folder)
    if seal is None:
        return None
    lacking = set(may_lack)
    for name, entry in seal.files.items():
        path = folder / name
        if name in lacking and not path.is_file():
            continue
        if not path.is_file():
            raise FormatError(f"{path} is missing: {folder / SEAL} names it")
        if path.stat().st_size != entry.size or sha256(path) != entry.sha256:
            raise FormatError(
                f"{path} changed since the run was sealed: its SHA-256 differs. Bring back the file as it was; if the "
                f"change is meant, remove every {SEAL} of the run, which then counts as not sealed"
            )
    return seal
