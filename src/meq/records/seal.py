"""Seals: a JSON file that holds a hash of its own content, and a folder's `seal.json`, which vouches for its files.

A byte that is changed by hand is noticed when the file is read. A run has two folder seals: one beside its record and
one beside its weights. The run's own names the model's, so that a byte changed anywhere in the folder is found, and so
that a model that lies on the Hub alone is checked as well. A seal is written before the file that says that all is done
(the record, the task): a finished run is a sealed one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

from meq.records.files import sha256, write_bytes
from meq.records.strict_json import SCHEMA, FormatError, loads, plain, versioned

SEAL = "seal.json"
FIELD = "seal"
"""The field of a sealed file that holds the SHA-256 of all others."""
Kind = TypeVar("Kind")


def write_sealed(path: Path, value: Any) -> None:
    """Write a dataclass as strict JSON with a hash of itself; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, _sealed_text(plain(value)).encode())


def read_sealed(kind: type[Kind], path: Path) -> Kind:
    """Read what `write_sealed` wrote; an error if a byte has changed since, or a field is missing or unknown.

    A dataclass with a field `seal` is given the hash as well.
    """
    return _read(kind, path, _unchanged(path))


def read_cached(kind: type[Kind], path: Path) -> Kind | None:
    """`read_sealed` for results that can be computed again: None if there is no file, or if it has other fields.

    Files of another version of meq may have other fields. A byte that has changed is an error all the same.
    """
    if not path.is_file():
        return None
    value = _unchanged(path)
    try:
        return _read(kind, path, value)
    except FormatError:
        return None


def _read(kind: type[Kind], path: Path, value: dict[str, Any]) -> Kind:
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    fields = {name: each for name, each in value.items() if name != FIELD or FIELD in known}
    return versioned(kind, fields, str(path))


def _unchanged(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    value = loads(content, str(path))
    if not isinstance(value, dict) or FIELD not in value:
        raise FormatError(f"{path}: the field {FIELD!r} is missing: not a file that meq has written")
    if _sealed_text(plain(value)).encode() != content:
        raise FormatError(f"{path}: changed since it was written, its own hash does not match")
    return value


def _sealed_text(value: dict[str, Any]) -> str:
    """The file's text. The values are `plain` already: {"not finite": "nan"} must not be encoded twice."""
    fields = {name: each for name, each in value.items() if name != FIELD}
    return _json({**fields, FIELD: hashlib.sha256(_json(fields).encode()).hexdigest()})


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


# -- the seal of a folder ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """A file as it was when its folder was sealed."""

    sha256: str
    size: int

    def matches(self, path: Path) -> bool:
        return path.stat().st_size == self.size and sha256(path) == self.sha256


@dataclass(frozen=True, kw_only=True)
class Seal:
    """What a folder held when it was sealed. Files that are not named here may come, change and go."""

    schema: int = SCHEMA
    files: Mapping[str, SealedFile]
    """By path, relative to the folder, with forward slashes."""


def sealed_files(folder: Path, names: Iterable[str]) -> dict[str, SealedFile]:
    """Hash these files of a folder."""
    return {name: SealedFile(sha256=sha256(folder / name), size=(folder / name).stat().st_size) for name in names}


def write_seal(folder: Path, names: Iterable[str], *, to_come: Mapping[str, bytes] | None = None) -> None:
    """Seal files of the folder, and those `to_come`, which are written next."""
    files = sealed_files(folder, names)
    for name, content in (to_come or {}).items():
        files[name] = SealedFile(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    write_sealed(folder / SEAL, Seal(files=dict(sorted(files.items()))))


def read_seal(folder: Path) -> Seal | None:
    """The seal of a folder; None if it has none, as runs of older versions."""
    path = folder / SEAL
    if not path.is_file():
        return None
    seal = read_sealed(Seal, path)
    refuse_outside(path, seal.files, links=True)  # the Hub's cache keeps every file behind a link, and it is hashed
    return seal


def refuse_outside(path: Path, names: Iterable[str], *, links: bool = False) -> None:
    """An error if a name listed in the file `path` leads out of its folder; with `links`, symbolic links may."""
    folder = path.parent.resolve()
    for name in names:
        place = PurePosixPath(name)
        outside = place.is_absolute() or ".." in place.parts or PureWindowsPath(name).drive or "\\" in name
        if outside or not (links or (folder / name).resolve().is_relative_to(folder)):
            raise FormatError(f"{path}: {name!r} leads outside of the folder")


def check_seal(folder: Path, *, may_lack: Iterable[str] = ()) -> Seal | None:
    """Check every sealed file by its hash; an error names the first that changed. None if the folder has no seal."""
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
        if not entry.matches(path):
            raise FormatError(
                f"{path} changed since the run was sealed: its SHA-256 differs. Bring back the file as it was; if the "
                f"change is meant, remove every {SEAL} of the run, which then counts as not sealed"
            )
    return seal
