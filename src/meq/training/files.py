"""Files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


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
