"""Files that strangers name, read with care: regular files only, and JSON with the place of what is wrong.

A pipe never ends and a device has no end, so neither is opened. The size is known before anything is read, so that a
limit is a sentence and not a machine without memory. JSON comes as one record per line, or as one document per file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from meq.data.findings import DataError, Findings
from meq.records import JsonError, parse_json

CHUNK = 2**20
BOM = b"\xef\xbb\xbf"
MAX_LINE_BYTES = 2**25
"""A longer line of a table or of JSON lines is left out: ten thousand features as text need a hundredth of it."""
MAX_DOCUMENT_BYTES = 2**31
"""A larger JSON document is refused before it is read; the largest of a known data set is a quarter of it."""
PACKED = ".gz"
MAX_UNPACKED_BYTES = 2**33
"""Of a packed table; one that is larger is unpacked by whoever trusts it."""
MAX_RATIO = 200
"""How many times its size a packed table may unpack to, beyond the first FREE_BYTES; text is packed to a tenth."""
FREE_BYTES = 2**26
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, *, most: int | None = None) -> BinaryIO:
    """The file, open for reading bytes. Anything but a regular file of at most `most` bytes is a DataError.

    A missing file stays a FileNotFoundError, so that the caller can say what is missing.
    """
    _check_regular(path, os.stat(path))  # before it is opened: opening alone can already start a device
    # without O_NONBLOCK, a pipe that took the file's place in between would hold us until somebody writes into it
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(handle, "rb")
    try:
        found = os.fstat(handle)
        _check_regular(path, found)
        if most is not None and found.st_size > most:
            raise DataError(f"{path}: {found.st_size:,} bytes, more than the {most:,} that are read")
    except BaseException:
        file.close()
        raise
    return file


def open_unpacked(path: Path) -> BinaryIO:
    """The file, open for reading bytes, and unpacked while it is read if its name ends in .gz.

    A few bytes can stand for any number of others: what unpacks to more than MAX_UNPACKED_BYTES, or to more than
    MAX_RATIO times its size, is a DataError as soon as that much was read.
    """
    opened = open_regular(path)
    if path.suffix.lower() != PACKED:
        return opened
    return io.BufferedReader(_Unpacked(path, opened))


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, counted."""

    def __init__(self, path: Path, packed: BinaryIO) -> None:
        self.path, self.packed, self.count = path, packed, 0
        self.most = min(MAX_UNPACKED_BYTES, max(FREE_BYTES, MAX_RATIO * os.fstat(packed.fileno()).st_size))
        self.unpacking = gzip.GzipFile(fileobj=packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self.unpacking.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.path}: not a whole gzip file, or damaged: {error}") from error
        self.count += len(piece)
        if self.count > self.most:
            raise DataError(
                f"{self.path}: it unpacks to more than {self.most:,} bytes, which is more than is read of a packed "
                "table; unpack it yourself if you trust it"
            )
        buffer[: len(piece)] = piece
        return len(piece)

    def tell(self) -> int:
        return self.count

    def close(self) -> None:
        if not self.closed:
            self.unpacking.close()
            self.packed.close()
        super().close()


def read_regular(path: Path, *, most: int) -> bytes:
    """All bytes of a regular file that has at most so many."""
    with open_regular(path, most=most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # a file that grows meanwhile is not followed


def sha256_of(path: Path, *, most: int) -> str:
    """The hash of a regular file, read piece by piece."""
    digest = hashlib.sha256()
    with open_regular(path, most=most) as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def _check_regular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    what = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "something else")
    raise DataError(f"{path}: this is {what}, not a file")


@contextmanager
def explained(what: str, remedy: str = "") -> Iterator[None]:
    """A library reports what is wrong with a stranger's file in many ways; here they become one."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{what}: it is not there{remedy}") from error
    except Exception as error:  # OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError: all of the file's
        raise DataError(f"{what}: {str(error) or type(error).__name__}{remedy}") from error


class BadRowError(Exception):
    """A record that cannot be used: its kind, for the count, and a sentence about it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class LabelledLine(Protocol):
    """What a row of any file has."""

    @property
    def id(self) -> str: ...
    @property
    def label(self) -> Any: ...
    @property
    def line(self) -> int: ...


Row = TypeVar("Row", bound=LabelledLine)
Record = TypeVar("Record")


def json_lines(file: Path, findings: Findings, *, required: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, record) of each line that holds a JSON object with all the required keys.

    Other lines are reported. Blank lines and a byte order mark at the start are no fault.
    """
    try:
        opened = open_unpacked(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    with opened:
        for number, line in numbered_lines(opened):
            try:
                if line is None:
                    raise BadRowError("long line", f"a line of more than {MAX_LINE_BYTES:,} bytes, which is not read")
                line = line.removeprefix(BOM) if number == 1 else line
                if line.strip():
                    yield number, _record(line, required)
            except BadRowError as bad:
                findings.report(bad.kind, str(bad), file=file, line=number)


def numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """The lines of a file, from 1, with their ends; None in place of one that is longer than MAX_LINE_BYTES."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) <= MAX_LINE_BYTES:
            yield number, line
            continue
        yield number, None  # before the rest is looked at: whoever stops at the first fault need not wait for it
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)


def read_rows(
    file: Path,
    findings: Findings,
    *,
    parse: Callable[[int, Mapping[str, Any]], Row | None],
    required: Sequence[str] = (),
    first: int | None = None,
) -> list[Row]:
    """The rows of a file of JSON lines, by `parse_rows`; `first` reads no more than that many records."""
    records = itertools.islice(json_lines(file, findings, required=required), first)
    return parse_rows(records, parse, file=file, findings=findings)


def parse_rows(
    records: Iterable[tuple[int, Record]],
    parse: Callable[[int, Record], Row | None],
    *,
    file: Path,
    findings: Findings,
) -> list[Row]:
    """What `parse` makes of each record; None leaves a record out on purpose, BadRowError reports it with its line.

    An id that was seen before in the same file is reported too, and the later row left out.
    """
    rows: list[Row] = []
    lines: dict[str, int] = {}
    for line, record in records:
        try:
            row = parse(line, record)
            if row is None:
                continue
            if lines.setdefault(row.id, line) != line:
                raise BadRowError("duplicate id", f"the id {row.id!r} was used before, in line {lines[row.id]}")
            rows.append(row)
        except BadRowError as bad:
            findings.report(bad.kind, str(bad), file=file, line=line)
    return rows


def with_labels(rows: Sequence[Row], file: Path, findings: Findings, *, key: str = "label") -> list[Row]:
    """The rows that have a label, in a file where all of them should: those without are reported."""
    for row in rows:
        if row.label is None:
            findings.report("missing key", f"the record has no {key!r}", file=file, line=row.line)
    return [row for row in rows if row.label is not None]


def read_json(file: Path, *, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The whole document of a file; `hook` may make something smaller of each object while it is read."""
    try:
        return parse_json(read_regular(file, most=MAX_DOCUMENT_BYTES).removeprefix(BOM), hook=hook)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    except JsonError as error:
        place = f"{file}, line {error.line}, column {error.column}" if error.line else str(file)
        raise DataError(f"{place}: {error}") from error


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
    """True for an integer of 64 bits; true and false are none, although Python counts them in."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def described(value: object) -> str:
    """A value as an error shows it: its JSON type, and the value itself if it is short."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of more than 64 bits"
    written = repr(value)
    return names.get(type(value), "a number") + (f", {written}" if len(written) <= 40 and value is not None else "")


def _record(line: bytes, required: Sequence[str]) -> dict[str, Any]:
    try:
        record = parse_json(line, constants=True)  # NaN is how Python writes a number that is missing
    except JsonError as error:
        place = f", column {error.column}" if error.column else ""
        raise BadRowError("wrong JSON", f"{error}{place}") from error
    if not isinstance(record, dict):
        raise BadRowError("wrong JSON", f"a record must be a JSON object, this is {described(record)}")
    missing = [key for key in required if key not in record]
    if missing:
        raise BadRowError("missing key", f"the record has no {' and no '.join(map(repr, missing))}")
    return record
