"""Tables in memory: a pandas DataFrame, a `datasets.Dataset` or a list of dictionaries, written once as Parquet.

From then on they are read as any table of a file is, by a run that was trained on one too. Errors name the row as the
frame does, by its index. None of the libraries is imported to tell what was given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meq.data.findings import DataError, Finding
from meq.errors import shown
from meq.records import write_bytes

TABLE = "table.parquet"
PICTURES = "pictures"
KNOWN = "a path of a table, the name of a data set, a pandas DataFrame, a datasets.Dataset, or a list of dictionaries"
NOTHING = ("NAType", "NaTType")
"""What pandas calls that a cell is empty."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """A table in memory, as columns of plain cells."""

    what: str
    """What it is to its owner: the DataFrame, the Dataset, the list."""
    columns: Mapping[str, list[Any]]
    names: Sequence[Any]
    """What its owner calls each row: the index."""

    def write(self, folder: Path) -> FrameFile:
        """Write it into a folder as `table.parquet`, and its pictures, where cells hold some, beside it."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        folder.mkdir(parents=True, exist_ok=True)
        made, pictures = {}, False
        for column, cells in self.columns.items():
            if any(_is_picture(cell) for cell in cells):
                cells, pictures = self._written_pictures(column, cells, folder), True
            made[column] = self._array(column, cells)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(made), sink, compression="zstd")
        write_bytes(folder / TABLE, sink.getvalue().to_pybytes())
        return FrameFile(path=folder / TABLE, frame=self, root=folder if pictures else None)

    def _array(self, column: str, cells: list[Any]) -> Any:
        """One kind of cell per column, as Parquet needs it; texts and numbers side by side become texts, as in CSV."""
        import pyarrow as pa

        try:
            return pa.array(cells)
        except (pa.ArrowException, OverflowError) as error:
            for name, cell in zip(self.names, cells, strict=True):
                if cell is not None and not isinstance(cell, str | int | float | bool):
                    kind = "a list among single values" if isinstance(cell, list) else f"a {type(cell).__name__}"
                    raise DataError(f"{self.what}, row {name!r}: column {column!r} holds {kind}: {error}") from error
            return pa.array([None if cell is None else str(cell) for cell in cells])

    def _written_pictures(self, column: str, cells: list[Any], folder: Path) -> list[Any]:
        """Pictures in cells as files of their own, and their paths."""
        place = folder / PICTURES
        place.mkdir(exist_ok=True)
        stem, written = re.sub(r"[^\w-]+", "-", column) or "picture", []
        for number, (name, cell) in enumerate(zip(self.names, cells, strict=True)):
            if cell is not None and not _is_picture(cell):
                raise DataError(
                    f"{self.what}, row {name!r}: column {column!r} holds a {type(cell).__name__} among pictures"
                )
            path = f"{PICTURES}/{stem}-{number:06d}.png"
            if cell is not None:
                cell.convert("RGB").save(folder / path)
            written.append(None if cell is None else path)
        return written


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameFile:
    """A frame that was written to disk."""

    path: Path
    frame: Frame
    root: Path | None
    """Where its pictures lie, where cells held some; else None, and paths begin where their owner says."""

    def name_of(self, line: int) -> Any:
        """What the owner calls the row that the file has at this place, counted from 1."""
        return self.frame.names[line - 1]

    @contextmanager
    def named_rows(self) -> Iterator[None]:
        """Errors about the file, told as errors about the frame: by the row's name."""
        try:
            yield
        except DataError as error:
            raise DataError(*map(self.in_words, map(str, error.args))) from error

    def in_words(self, words: str) -> str:
        """A sentence about the file as one about the frame."""
        row = re.compile(re.escape(str(self.path)) + r", line (\d+)")
        words = row.sub(lambda found: f"{self.frame.what}, row {self.name_of(int(found[1]))!r}", words)
        return words.replace(str(self.path), self.frame.what).replace("on_bad='skip', or --skip-bad", "skip_bad=True")

    def named(self, finding: Finding) -> Finding:
        if finding.line is None:
            return replace(finding, file=self.frame.what)
        return replace(finding, file=f"{self.frame.what}, row {self.name_of(finding.line)!r}", line=None)


def frame_of(data: Any) -> Frame | None:
    """The table in memory that was given; None for what is no such thing, as a path is."""
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and hasattr(data, "columns"):
        return _made("the DataFrame", {name: data[name].tolist() for name in _once(data.columns)}, list(data.index))
    if library == "datasets" and hasattr(data, "column_names"):
        if isinstance(data.column_names, Mapping):
            raise DataError(f"this holds several splits ({', '.join(data.column_names)}): give one of them, or join "
                            "them with a column that says train, dev or test, and name it with `split`")  # fmt: skip
        return _made("the Dataset", _dataset_columns(data), list(range(len(data))))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes) and data:
        if not all(isinstance(row, Mapping) for row in data):
            return None
        names = list(dict.fromkeys(name for row in data for name in row))
        return _made("the list", {name: [row.get(name) for row in data] for name in names}, list(range(len(data))))
    return None


@contextmanager
def on_disk(data: Any, root: Path | None = None) -> Iterator[tuple[str, Path | None]]:
    """A table's path, or a set's name, and where paths start; a table in memory is a file while the block lasts."""
    frame = frame_of(data)
    if frame is None:
        if not isinstance(data, str | Path):
            raise unreadable(data)
        yield str(data), root
        return
    with TemporaryDirectory(prefix="meq-frame-") as scratch:
        file = frame.write(Path(scratch))
        with file.named_rows():
            yield str(file.path), root or file.root or Path.cwd()


def unreadable(data: Any) -> DataError:
    """What is said of something that is no data."""
    return DataError(f"data must be {KNOWN}; got {shown(type(data).__name__, 80)}")


def _once(columns: Any) -> list[Any]:
    """The columns; two of one name could not be told apart."""
    names = list(columns)
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise DataError(f"the DataFrame has several columns called {', '.join(map(repr, twice[:5]))}; rename them")
    return names


def _made(what: str, columns: Mapping[Any, Sequence[Any]], names: Sequence[Any]) -> Frame:
    if not names or not columns:
        raise DataError(f"{what} has no {'columns' if names else 'rows'}")
    plain = {str(name): [plain_cell(cell) for cell in cells] for name, cells in columns.items()}
    return Frame(what=what, columns=plain, names=names)


def _dataset_columns(data: Any) -> dict[str, list[Any]]:
    """The columns of a `datasets.Dataset`, whatever format it is set to; classes by their names, not by numbers."""
    plain = data.with_format(None)
    columns = {}
    for name in data.column_names:
        cells, feature = list(plain[name]), data.features[name]
        classes = getattr(feature, "names", None)
        if isinstance(classes, list):
            cells = [classes[cell] if isinstance(cell, int) and 0 <= cell < len(classes) else None for cell in cells]
        columns[name] = cells
    return columns


def plain_cell(value: Any) -> Any:
    """A cell as a text, a number, a truth value, a picture, or lists of them; None where there is nothing."""
    if value is None or isinstance(value, str | bool | int) or _is_picture(value):
        return value
    if hasattr(value, "tolist"):  # of numpy, or of torch
        return plain_cell(value.tolist())
    if isinstance(value, float):
        return None if math.isnan(value) else value  # what is infinite is somebody's mistake, and is told of later
    if isinstance(value, list | tuple):
        return [each if isinstance(each, float) else plain_cell(each) for each in value]
    return None if type(value).__name__ in NOTHING else str(value)


def _is_picture(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "convert")
