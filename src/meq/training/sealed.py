"""JSON files that hold a hash of their own content: a byte that is changed by hand is noticed when they are read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

from meq.files import write_bytes
from meq.training.plain import FormatError, loads, plain, typed

SEAL = "seal"
Kind = TypeVar("Kind")


def write_sealed(path: Path, value: Any) -> None:
    """A dataclass as strict JSON with its seal; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, _text(plain(value)).encode())


def read_sealed(kind: type[Kind], path: Path) -> Kind:
    """What `write_sealed` wrote; an error if a byte of it has changed since, or a field is missing or unknown."""
    content = path.read_bytes()
    value = loads(content, str(path))
    if not isinstance(value, dict) or SEAL not in value:
        raise FormatError(f"{path}: the field {SEAL!r} is missing: not a file that meq has written")
    fields = {name: each for name, each in value.items() if name != SEAL}
    if _text(plain(fields)).encode() != content:
        raise FormatError(f"{path}: changed since it was written, its own hash does not match")
    return typed(kind, fields, str(path))


def _text(fields: dict[str, Any]) -> str:
    """Of fields that are plain already: what stands for a number that is not finite must not be spelled again."""
    return _json({**fields, SEAL: hashlib.sha256(_json(fields).encode()).hexdigest()})


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
