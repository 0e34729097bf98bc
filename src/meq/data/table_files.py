"""Tables on disk: CSV, JSONL and Parquet files, the first two also packed with gzip, as rows of cells with their lines.

Reading streams: only the columns that are asked for are kept, and a row is forgotten when the next one comes. The line
of a row is the one it begins on; in a Parquet file, which has no lines, it is the row's number, counted from 1. What a
Parquet file claims to hold is judged before it is unpacked.
"""

from __future__ import annotations

import csv
import fnmatch
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from meq.data.files import (
    BOM,
    MAX_LINE_BYTES,
    PACKED,
    explained,
    json_lines,
    numbered_lines,
    open_regular,
    open_unpacked,
)
from meq.data.findings import DataError, Findings
from meq.errors import shown
from meq.options import nearest

LINES = (".csv", ".tsv", ".jsonl", ".ndjson")
TABLE_SUFFIXES = (*LINES, ".parquet", *(f"{suffix}{PACKED}" for suffix in LINES))
WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")

COMPARED, LONGEST_NAME = 1000, 200
"""Of how many columns the nearest to a wrong name is looked for, and how long their names may be."""
MAX_ROWS = 100_000_000
"""A Parquet file that says it has more is refused before it is read."""
MAX_GROUP_BYTES = 2**30
"""What one column of one row group may unpack to; writers make groups of a tenth of it."""
BYTES_PER_VALUE = 4
BATCH_ROWS = 1024
"""Rows of a Parquet file that are unpacked at a time."""
Broken = dict[int, tuple[str, str]]
"""By line: the kind of finding, and what is wrong."""
Row = tuple[int, list[Any]]
"""The line of a row, and its cells in the order of the columns that were asked for."""


def is_table(name: str | Path) -> bool:
    """Whether a file of that name is one that `open_table` reads."""
    return table_suffix(name) in TABLE_SUFFIXES


def table_suffix(name: str | Path) -> str:
    """The suffix of a file, and where it is packed the one before it too: ".csv", ".csv.gz"."""
    path = Path(name)
    suffix = path.suffix.lower()
    return f"{Path(path.stem).suffix.lower()}{suffix}" if suffix == PACKED else suffix


def open_table(path: Path | str, *, delimiter: str | None = None) -> TableFile:
    """The table in that file; what it is follows from the suffix. `delimiter` is for CSV only."""
    path = Path(path)
    suffix = table_suffix(path)
    if suffix not in TABLE_SUFFIXES:
        raise DataError(
            f"{path}: a table is one of {', '.join(TABLE_SUFFIXES)}, not {suffix or 'a file without suffix'!r}"
        )
    if not path.is_file():
        raise DataError(f"{path}: {'this is not a regular file' if path.exists() else 'there is no such file'}")
    suffix = suffix.removesuffix(PACKED)
    if suffix in (".csv", ".tsv"):
        return CsvFile(path, ("\t" if suffix == ".tsv" else ",") if delimiter is None else delimiter)
    if delimiter is not None:
        raise DataError(f"{path}: a delimiter is for .csv and .tsv files only")
    return ParquetFile(path) if suffix == ".parquet" else JsonlFile(path)


class TableFile(ABC):
    """A file with named columns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def columns(self, wanted: Collection[str] | None = None) -> list[str]:
        """The names of the columns. Where they must be searched for, searching ends once all of `wanted` were seen."""

    @abstractmethod
    def rows(self, columns: Sequence[str], findings: Findings) -> Iterator[Row]:
        """Every row that can be read; the others are reported."""

    def readable(self) -> list[str]:
        """The columns with a name whose cells can be read, whatever they hold."""
        return [name for name in self.columns() if name]

    def expand(self, wanted: Sequence[str]) -> dict[str, list[str]]:
        """The columns that each name stands for: itself, or those that match it as a pattern, 2 before 10."""
        patterns = [name for name in wanted if any(mark in name for mark in "*?[")]
        known = self.columns(None if patterns else frozenset(wanted))
        found = {}
        for name in wanted:
            matching = [column for column in known if fnmatch.fnmatchcase(column, name)] if name in patterns else []
            found[name] = [name] if name and name in known else sorted(matching, key=_natural)
            if not found[name]:
                # a table can have a million columns, and names without end: not all are worth a comparison
                near = nearest(name, [each for each in known[:COMPARED] if each and len(each) <= LONGEST_NAME])
                raise DataError(f"{self.path} has no column {shown(name, 80)!r}: {near}{self._hint(known)}")
        return found

    def _hint(self, known: list[str]) -> str:
        return ""


class CsvFile(TableFile):
    """A header, then rows of as many cells, in UTF-8. Empty lines are passed over."""

    def __init__(self, path: Path, delimiter: str) -> None:
        super().__init__(path)
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise DataError(f"{path}: a delimiter is one character, and no quote or line end; got {delimiter!r}")
        self.delimiter = delimiter

    def columns(self, wanted: Collection[str] | None = None) -> list[str]:
        with open_unpacked(self.path) as file:
            return self._header(*self._reader(file))

    def rows(self, columns: Sequence[str], findings: Findings) -> Iterator[Row]:
        with open_unpacked(self.path) as file:
            reader, broken = self._reader(file)
            header = self._header(reader, broken)
            places = [header.index(column) for column in columns]
            while True:
                line = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    broken.clear()  # the row is left out already
                    findings.report("wrong CSV", _csv_trouble(error), file=self.path, line=line)
                    continue
                if broken:
                    # the text was decoded with substitutes so that the row ends where it should; now it is left out
                    at, (kind, trouble) = min(broken.items())
                    broken.clear()
                    findings.report(kind, trouble, file=self.path, line=at)
                elif len(cells) == len(header):
                    yield line, [cells[place] for place in places]
                elif cells:
                    message = (
                        f"{len(cells)} cells, the header has {len(header)}; quote texts that hold {self.delimiter!r}"
                    )
                    findings.report("wrong CSV", message, file=self.path, line=line)

    def _reader(self, file: BinaryIO) -> tuple[Any, Broken]:
        """A reader of cells, and the lines that are no UTF-8 or too long among those it has read."""
        broken: Broken = {}
        return csv.reader(_lines(self.path, file, broken), delimiter=self.delimiter, strict=True), broken

    def _header(self, reader: Any, broken: Broken) -> list[str]:
        try:
            header: list[str] = next(reader, [])
        except csv.Error as error:
            raise DataError(f"{self.path}, line 1: {_csv_trouble(error)}") from error
        if broken:
            raise DataError(f"{self.path}, line {min(broken)}: {broken[min(broken)][1]}")
        if not any(header):
            raise DataError(f"{self.path}: the first line must name the columns, and it is empty")
        _check_unique(self.path, header)
        return header

    def _hint(self, known: list[str]) -> str:
        other = next((mark for mark in ";\t|," if mark != self.delimiter and mark in known[0]), None)
        return (
            f" The header looks separated by {other!r}: give delimiter={other!r}." if other and len(known) == 1 else ""
        )


class JsonlFile(TableFile):
    """A JSON object per line; a key that a line lacks is an empty cell. Empty lines are passed over."""

    def columns(self, wanted: Collection[str] | None = None) -> list[str]:
        seen: dict[str, None] = {}
        looked = Findings(on_bad="skip")  # what is wrong is reported when the rows are read
        for _, record in json_lines(self.path, looked):
            seen.update(dict.fromkeys(record))
            if wanted is not None and all(name in seen for name in wanted):
                break
        if not seen and len(looked):
            raise DataError(f"{self.path}: no line of it can be read", *looked.first())
        return list(seen)

    def rows(self, columns: Sequence[str], findings: Findings) -> Iterator[Row]:
        for line, record in json_lines(self.path, findings):
            yield line, [record.get(column) for column in columns]


class ParquetFile(TableFile):
    """Columns of numbers, texts and lists of them; structures and binary columns are refused."""

    def columns(self, wanted: Collection[str] | None = None) -> list[str]:
        with _opened_parquet(self.path) as file:
            names: list[str] = file.schema_arrow.names
        _check_unique(self.path, names)
        return names

    def readable(self) -> list[str]:
        with _opened_parquet(self.path) as file:
            return [field.name for field in file.schema_arrow if field.name and _is_readable(field.type)]

    def rows(self, columns: Sequence[str], findings: Findings) -> Iterator[Row]:
        with _opened_parquet(self.path) as file:
            for column in columns:
                _check_type(self.path, column, file.schema_arrow.field(column).type)
            _check_sizes(self.path, file.metadata, columns)
            batches = file.iter_batches(batch_size=BATCH_ROWS, columns=list(dict.fromkeys(columns)))
            line = 0
            while True:
                with explained(f"{self.path}: broken after row {line}"):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    cells = [_cells(batch.column(column)) for column in columns]
                for row in zip(*cells, strict=True):
                    line += 1
                    yield line, list(row)


def _lines(path: Path, file: BinaryIO, broken: Broken) -> Iterator[str]:
    """Lines of text; those that cannot be used are noted in `broken`, with the place of what is wrong."""
    offset = 0
    for number, raw in numbered_lines(file):
        if raw is None:
            broken[number] = "long line", f"a line of more than {MAX_LINE_BYTES:,} bytes, which is not read"
            yield "\n"
            offset = file.tell()
            continue
        if number == 1:
            if raw.startswith(WIDE_BOMS):
                raise DataError(f"{path}: this is UTF-16; save the file as UTF-8")
            raw, offset = (raw[3:], 3) if raw.startswith(BOM) else (raw, 0)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            byte = f"byte {offset + error.start} of the file (0x{raw[error.start]:02x})"
            broken[number] = "wrong encoding", f"not UTF-8 at {byte}; save the file as UTF-8"
            text = raw.decode(errors="replace")
        if b"\0" in raw:
            message = f"a NUL at byte {offset + raw.index(0)} of the file: this is no text in UTF-8"
            broken[number] = "wrong encoding", message
            text = text.replace("\0", " ")
        offset += len(raw)
        yield text


def _csv_trouble(error: csv.Error) -> str:
    if "field limit" in str(error):
        return f"a cell of more than {csv.field_size_limit():,} characters; write such a table as JSONL or Parquet"
    if "end of data" in str(error):
        return "a quote that opens here is never closed"
    return f"not CSV: {error}"


def _check_unique(path: Path, names: Sequence[str]) -> None:
    """Columns without a name may be several: nobody can ask for them."""
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice:
        raise DataError(f"{path}: there are several columns called {', '.join(map(repr, twice[:5]))}; rename them")


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers inside a name count as numbers: x_2 comes before x_10."""
    parts = re.split(r"([0-9]+)", name)
    # by their length, then their digits: a number of thousands of digits is no number to Python
    digits = [part.lstrip("0") for part in parts]
    return [(len(digits[place]), digits[place]) if place % 2 else (-1, part) for place, part in enumerate(parts)]


@contextmanager
def _opened_parquet(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with open_regular(path) as regular:
        with explained(f"{path}: not a readable Parquet file"):
            file = pq.ParquetFile(regular)
        with file:
            yield file


def _check_sizes(path: Path, metadata: Any, columns: Sequence[str]) -> None:
    """What the columns claim to hold: a few repeated bytes of a Parquet file can stand for any number of values."""
    if metadata.num_rows > MAX_ROWS:
        raise DataError(f"{path}: it says {metadata.num_rows:,} rows; at most {MAX_ROWS:,} are read, split it")
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            if column.path_in_schema.split(".")[0] not in columns:
                continue
            size = max(column.num_values * BYTES_PER_VALUE, column.total_uncompressed_size)
            if size > MAX_GROUP_BYTES:
                raise DataError(
                    f"{path}: row group {number} says {size:,} bytes of {shown(column.path_in_schema, 80)!r}; at most "
                    f"{MAX_GROUP_BYTES:,} are read, write it with smaller row groups"
                )


def _check_type(path: Path, column: str, kind: Any) -> None:
    if not _is_readable(kind):
        raise DataError(
            f"{path}: column {shown(column, 80)!r} is of type {shown(kind, 80)}; only numbers, texts and lists of them "
            "are read. Write pictures as files and their paths into the column"
        )


def _is_readable(kind: Any) -> bool:
    from pyarrow import types

    inner = kind
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
    if types.is_dictionary(inner):
        inner = inner.value_type
    plain = (types.is_string, types.is_large_string, types.is_boolean, types.is_integer, types.is_floating)
    return any(check(inner) for check in (*plain, types.is_decimal, types.is_date, types.is_null))


def _cells(array: Any) -> Sequence[Any]:
    """The cells of a column as Python objects; lists of numbers as arrays, which saves most of the time and memory."""
    from pyarrow import types

    kind = array.type
    nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if nested and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        return [cell.values.to_numpy(zero_copy_only=False) if cell.is_valid else None for cell in array]
    cells: list[Any] = array.to_pylist()
    return cells
