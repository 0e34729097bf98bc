"""The seal of a study's folder: the hash of every file, and of the list itself.

The manifest is written in one form only and holds a hash of its own content, so that a byte changed anywhere in it, a
space included, is found as surely as one in a file that it lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from meq.files import sha256, write_bytes
from meq.models.hub import WEIGHTS
from meq.training.plain import FormatError, dumps, loads, plain, typed

MANIFEST = "manifest.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """One file."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the folder held when it was last sealed."""

    schema: int
    study: str
    table_format: int
    """The form of the tables: another version of meq may write them differently."""
    files: Mapping[str, Sealed]
    """By path, relative to the folder, with forward slashes."""
    seal: str = ""
    """SHA-256 of the manifest without this field."""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_bytes(folder / MANIFEST, _text(manifest).encode())


def read_manifest(folder: Path) -> Manifest:
    """The manifest, if not a byte of it has changed since it was written."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    manifest = typed(Manifest, loads(content, str(path)), str(path))
    if manifest.schema != SCHEMA:
        raise FormatError(f"{path}: the field 'schema' is {manifest.schema}, this version of meq reads {SCHEMA}")
    if _text(manifest).encode() != content:
        raise FormatError(f"{path}: changed since it was written, its own hash does not match")
    for name in manifest.files:
        inside(folder, name)
    return manifest


def sealed(manifest: Manifest, folder: Path, files: Iterable[str], *, without: str | None = None) -> Manifest:
    """The manifest with these files hashed anew. All others keep the hash they had: a change is not blessed by chance.

    Files below the folder `without` are forgotten first.
    """
    kept = {name: entry for name, entry in manifest.files.items() if not (without and name.startswith(f"{without}/"))}
    new = {name: Sealed(sha256=sha256(folder / name), size=(folder / name).stat().st_size) for name in files}
    return replace(manifest, files=dict(sorted({**kept, **new}.items())))


def inside(folder: Path, name: str) -> Path:
    """The file of that name, which must lie below the folder."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise FormatError(f"{folder / MANIFEST}: {name!r} leads outside of the folder")
    return folder / name


def may_be_absent(name: str) -> bool:
    """Weights are large, and a study can be kept, and verified, without them."""
    return "/checkpoints/" in name or name.endswith(f"/model/{WEIGHTS}")


def files_below(folder: Path, place: str = "") -> list[str]:
    """Every file, relative to the folder, sorted."""
    below = (folder / place).rglob("*")
    return sorted(path.relative_to(folder).as_posix() for path in below if not path.is_dir() or path.is_symlink())


def _text(manifest: Manifest) -> str:
    content = {name: value for name, value in plain(manifest).items() if name != "seal"}
    return dumps({**content, "seal": hashlib.sha256(dumps(content).encode()).hexdigest()})
