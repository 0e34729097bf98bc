"""Parquet files as rows of cells; what they claim to hold is judged before it is unpacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meq.data.findings import DataError
from meq.data.regular_files import open_regular
from meq.foreign import shown

MAX_ROWS = 100_000_000
"""A Parquet file that says it has more is refused before it is read."""
MAX_GROUP_BYTES = 2**30
"""What one column of one row group may unpack to; writers make groups of a tenth of it."""
BYTES_PER_VALUE = 4
BATCH_ROWS = 1024
"""Rows of a Parquet file that are unpacked at a time."""


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns."""
    with _opened(path) as file:
        names: list[str] = file.schema_arrow.names
        return names


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    """The number of every row, from 1, and its cells in the order of `columns`."""
    line = 0
    with _opened(path) as file:
        for column in columns:
            _check_type(path, column, file.schema_arrow.field(column).type)
        _check_sizes(path, file.metadata, columns)
        batches = file.iter_batches(batch_size=BATCH_ROWS, columns=list(dict.fromkeys(columns)))
        while (cells := _next_cells(path, batches, columns, line)) is not None:
            for row in zip(*cells, strict=True):
                line += 1
                yield line, list(row)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with open_regular(path) as regular:
        with _explained(f"{path}: not a readable Parquet file"):
            file = pq.ParquetFile(regular)
        with file:
            yield file


def _next_cells(path: Path, batches: Iterator[Any], columns: Sequence[str], line: int) -> list[Sequence[Any]] | None:
    """The next rows, column by column; None after the last."""
    with _explained(f"{path}: broken after row {line}"):
        batch = next(batches, None)
        return None if batch is None else [_cells(batch.column(column)) for column in columns]


@contextmanager
def _explained(what: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise DataError(f"{what}: {str(error) or type(error).__name__}") from error


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
    from pyarrow import types

    inner = kind
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
    if types.is_dictionary(inner):
        inner = inner.value_type
    plain = (types.is_string, types.is_large_string, types.is_boolean, types.is_integer, types.is_floating)
    if not any(check(inner) for check in (*plain, types.is_decimal, types.is_date, types.is_null)):
        raise DataError(
            f"{path}: column {shown(column, 80)!r} is of type {shown(kind, 80)}; only numbers, texts and lists of them "
            "are read. Write pictures as files and their paths into the column"
        )


def _cells(array: Any) -> Sequence[Any]:
    """The cells of a column as Python objects; lists of numbers as arrays, which saves most of the time and memory."""
    from pyarrow import types

    kind = array.type
    nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if nested and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        return [cell.values.to_numpy(zero_copy_only=False) if cell.is_valid else None for cell in array]
    cells: list[Any] = array.to_pylist()
    return cells
