"""JSON as data sets hold it: one record per line, or one document per file. What is wrong is said with its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from meq.data.contract import Split
from meq.data.findings import DataError, Findings

BOM = b"\xef\xbb\xbf"


class BadRowError(Exception):
    """A record that cannot be used: its kind, for the count, and a sentence about it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=HasId)


def json_lines(file: Path, findings: Findings, *, required: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, record) of each line that holds a JSON object with all the required keys.

    Other lines are reported. Blank lines and a byte order mark at the start are no fault.
    """
    try:
        lines = file.open("rb")
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    with lines:
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix(BOM) if number == 1 else line
            if not line.strip():
                continue
            try:
                yield number, _record(line, required)
            except BadRowError as bad:
                findings.report(bad.kind, str(bad), file=file, line=number)


def read_rows(
    file: Path,
    findings: Findings,
    *,
    parse: Callable[[int, Mapping[str, Any]], Row | None],
    required: Sequence[str] = (),
    first: int | None = None,
) -> list[Row]:
    """What `parse` makes of each record; None leaves a record out on purpose, BadRowError reports it with its line.

    An id that was seen before in the same file is reported too, and the later row left out. `first` reads no more
    than that many records.
    """
    rows: list[Row] = []
    lines: dict[str, int] = {}
    for count, (line, record) in enumerate(json_lines(file, findings, required=required), start=1):
        if first is not None and count > first:
            break
        try:
            row = parse(line, record)
            if row is None:
                continue
            if row.id in lines:
                raise BadRowError("duplicate id", f"the id {row.id!r} was used before, in line {lines[row.id]}")
        except BadRowError as bad:
            findings.report(bad.kind, str(bad), file=file, line=line)
            continue
        lines[row.id] = line
        rows.append(row)
    return rows


def read_json(file: Path, *, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The whole document of a file; `hook` may make something smaller of each object while it is read."""
    try:
        return json.loads(file.read_bytes().removeprefix(BOM).decode(), object_hook=hook)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{file}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not JSON: {error}") from error


def filled(splits: Mapping[str, Split], findings: Findings, *, root: Path) -> dict[str, Split]:
    """The splits that hold something. One that does not is noted as absent; none at all is an error."""
    for name, split in splits.items():
        if not len(split):
            findings.absent.append(f"{name}: its file holds no row that can be used")
    kept = {name: split for name, split in splits.items() if len(split)}
    if not kept:
        counts = ", ".join(f"{kind}: {count}" for kind, count in findings.counts.items()) or "the files are empty"
        raise DataError(f"{root}: no row can be used ({counts})")
    return kept


def text_of(record: Mapping[str, Any], key: str) -> str:
    """A text that is there, is not blank, and can be written in UTF-8."""
    value = record.get(key)
    if not isinstance(value, str):
        raise BadRowError("wrong type", f"{key!r} must be a text, it is {described(value)}")
    if not value.strip():
        raise BadRowError("empty text", f"{key!r} is empty")
    if not value.isascii():  # JSON can spell half a surrogate pair, which no file, tokenizer or hash takes
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRowError(
                "wrong type", f"{key!r} holds half a character, \\u{ord(value[error.start]):04x}"
            ) from error
    return value


def whole_number(value: object) -> bool:
    """True for an integer; true and false are none, although Python counts them in."""
    return isinstance(value, int) and not isinstance(value, bool)


def described(value: object) -> str:
    """A value as an error shows it: its JSON type, and the value itself if it is short."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    shown = repr(value)
    return names.get(type(value), "a number") + (f", {shown}" if len(shown) <= 40 and value is not None else "")


def _record(line: bytes, required: Sequence[str]) -> dict[str, Any]:
    try:
        record = json.loads(line.decode())
    except json.JSONDecodeError as error:
        raise BadRowError("wrong JSON", f"not JSON: {error.msg}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise BadRowError("wrong JSON", f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise BadRowError("wrong JSON", f"a record must be a JSON object, this is {described(record)}")
    missing = [key for key in required if key not in record]
    if missing:
        raise BadRowError("missing key", f"the record has no {' and no '.join(map(repr, missing))}")
    return record
