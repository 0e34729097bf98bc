"""From the lines of a table to rows that are small to keep, and from a row to its example.

Where no row can be used, the error gives the first reasons, and the mistake that is likely behind them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meq.data.content import ABSOLUTE, URL, Tree
from meq.data.contract import Example, plain_example
from meq.data.files import BadRowError, parse_rows
from meq.data.findings import DataError, Findings
from meq.data.splitting import SYNONYMS, split_called
from meq.data.table_columns import FileColumn, ModalityColumn, is_empty, plain_text
from meq.data.table_files import TableFile
from meq.data.table_labels import Task
from meq.options import nearest


class TableRow(NamedTuple):
    """What is kept of a row until its example is asked for."""

    line: int
    id: str
    group: str
    split: str
    label: Any
    cells: tuple[Any, ...]
    """One per modality, None where it is missing."""


@dataclass(frozen=True, kw_only=True)
class SingleColumns:
    """The columns that are no modality."""

    label: str | None
    """None for rows that are there to be answered."""
    id: str | None
    split: str | None
    group: str | None


class RowReader:
    """From the lines of a file to rows, and from a row to its example."""

    def __init__(
        self, file: TableFile, modalities: Sequence[ModalityColumn], task: Task, *, single: SingleColumns
    ) -> None:
        self.file, self.modalities, self.task, self.single = file, modalities, task, single
        wanted = [name for name in (single.label, single.id, single.split, single.group) if name is not None]
        for name in wanted:
            if file.expand([name])[name] != [name]:
                raise DataError(f"{name!r} must name one column, not a pattern of several")
        used = Counter(column for modality in modalities for column in modality.columns)
        for column, count in used.items():
            if column == single.label:
                raise DataError(f"{column!r} is the label, and would be an input too; a model would only copy it")
            if count > 1:
                raise DataError(f"the column {column!r} is named for more than one modality")
        self.columns = [column for modality in modalities for column in modality.columns] + wanted
        place = {column: at for at, column in enumerate(self.columns)}
        self.places = [[place[column] for column in modality.columns] for modality in modalities]
        self.at = {name: place[name] for name in wanted}
        files = [
            at for at, x in enumerate(modalities) if isinstance(x, FileColumn) and single.group in (None, x.columns[0])
        ]
        self.group_file = files[0] if files else None
        """The modality that rows are grouped by, if they are grouped by a picture or a sound."""

    @property
    def grouped_by(self) -> str | None:
        return self.single.group or (None if self.group_file is None else self.modalities[self.group_file].columns[0])

    def read(self, findings: Findings) -> list[TableRow]:
        records = self.file.rows(self.columns, findings)
        return parse_rows(records, self._row, file=self.file.path, findings=findings)

    def agreeing(self, rows: Sequence[TableRow], findings: Findings) -> list[TableRow]:
        """The rows that fit what is known of each modality; the others, of another width, are reported."""
        kept = []
        for row in rows:
            pairs = zip(self.modalities, row.cells, strict=True)
            wrong = [modality.wrong(cell) for modality, cell in pairs if cell is not None]
            message = next((each for each in wrong if each is not None), None)
            if message is None:
                kept.append(row)
            else:
                findings.report("wrong width", message, file=self.file.path, line=row.line)
        return kept

    def example(self, row: TableRow) -> Example:
        pairs = zip(self.modalities, row.cells, strict=True)
        content = {modality.name: modality.content(kept) for modality, kept in pairs if kept is not None}
        target = None if self.single.label is None else self.task.target(row.label)
        return plain_example(id=row.id, content=content, target=target, facts={"line": row.line})

    def _row(self, line: int, cells: Sequence[Any]) -> TableRow:
        pairs = zip(self.modalities, self.places, strict=True)
        kept = tuple([modality.keep([cells[at] for at in places]) for modality, places in pairs])
        if all([each is None for each in kept]):  # noqa: C419, a list is faster than a generator, and this runs per row
            raise BadRowError("empty row", "every modality is missing: there is nothing to read")
        column = self.single.label
        label = None if column is None else self.task.keep(cells[self.at[column]])
        name = self._id(line, cells)
        return TableRow(line, name, self._group(name, line, cells, kept), self._split(cells), label, kept)

    def _id(self, line: int, cells: Sequence[Any]) -> str:
        if self.single.id is None:
            return f"{self.file.path.stem}-{line}"
        cell = cells[self.at[self.single.id]]
        if is_empty(cell):
            raise BadRowError("missing id", f"there is no id in column {self.single.id!r}")
        return plain_text(cell, self.single.id, "missing id")

    def _group(self, name: str, line: int, cells: Sequence[Any], kept: Sequence[Any]) -> str:
        if self.group_file is not None:
            cell = kept[self.group_file]
        else:
            cell = None if self.single.group is None else cells[self.at[self.single.group]]
        if not is_empty(cell):
            return "group " + plain_text(cell, str(self.single.group), "wrong group")
        return f"row {line:012d}" if self.single.id is None else f"row {name}"

    def _split(self, cells: Sequence[Any]) -> str:
        if self.single.split is None:
            return ""
        cell = cells[self.at[self.single.split]]
        name = None if is_empty(cell) else plain_text(cell, self.single.split, "wrong split")
        called = None if name is None else split_called(name)
        if called is None:
            trouble = "is empty" if name is None else f"says {name!r}: {nearest(name, SYNONYMS)}"
            raise BadRowError("wrong split", f"column {self.single.split!r} {trouble}")
        return called


LOOKED_AT = 3
"""Names of missing files that are looked for elsewhere."""
FOLDERS = 50
"""Folders that they are looked for in."""
ROOT = "on the command line root is the folder after the table"
BY_KIND = {
    "missing label": "is {label!r} the column of labels?",
    "wrong label": "is {label!r} the column of labels, and is the task the right one?",
    "wrong split": "is it the column of splits? Without one, rows are split by fractions",
    "wrong numbers": "is it a column of numbers? Columns of texts are named with texts=, or --text",
    "wrong text": "is it a column of texts? Columns of numbers are named with vectors=, or --vector",
    "wrong path": "is it the column of paths?",
    "wrong CSV": "are its cells separated by another character? Give it as delimiter=, or --set delimiter=';'",
    "wrong encoding": "save the file as UTF-8",
    "wrong JSON": "each line must be one JSON object",
    "duplicate id": "is it the column of ids? Without one, rows are known by their line",
}


def read_rows_or_say_why(reader: RowReader, findings: Findings) -> list[TableRow]:
    """The rows of a table. Where bad rows are errors and nothing was found, the error gives the likely remedy too."""
    try:
        return reader.read(findings)
    except DataError as error:
        advice = _file_remedy(reader.file.path, reader.modalities)
        if findings.on_bad == "skip" or advice is None:
            raise
        raise DataError(*error.args, advice) from error


def no_row(reader: RowReader, findings: Findings, message: str) -> DataError:
    """The error that no row can be used: how many were left out and why, the first of them, and what to do."""
    if not len(findings):
        return DataError(f"{reader.file.path}: {message}; the file holds no rows")
    counted = f"{reader.file.path}: {message}; {len(findings)} were left out: {dict(findings.counts)}"
    advice = _file_remedy(reader.file.path, reader.modalities)
    if advice is None:
        kind, _ = findings.counts.most_common(1)[0]
        advice = BY_KIND.get(kind, "").format(label=reader.single.label)
    return DataError(counted, *findings.first(), *([advice] if advice else []))


def _file_remedy(table: Path, modalities: Sequence[ModalityColumn]) -> str | None:
    """For the first column of pictures or sounds none of which was found."""
    for modality in modalities:
        if isinstance(modality, FileColumn) and modality.files.missed and not modality.files.any_found:
            return _remedy(table, modality.columns[0], modality.files)
    return None


def _remedy(table: Path, column: str, files: Tree) -> str:
    names = files.missed
    if any(URL.match(name) for name in names):
        return f"column {column!r} holds addresses: download the {files.noun}s first, and write their paths there"
    if all(ABSOLUTE.match(name) for name in names):
        try:
            above = os.path.commonpath([os.path.dirname(name) for name in names]) or os.sep
        except ValueError:  # absolute on another system, or on several drives
            above = "the folder above them"
        outside = f"the paths in {column!r} are absolute and lie outside of {files.folder}"
        return f"{outside}: give {above} as root; {ROOT}"
    if any(".." in name.split("/") for name in names):
        return f"the paths in {column!r} go up with '..': write them relative to a folder above, and give that as root"
    elsewhere = _found_elsewhere(table, files)
    if elsewhere is not None:
        return elsewhere
    if all(" " in name and not Path(name).suffix.strip(".").isalnum() for name in names):
        return f"the cells of {column!r} read like texts, not like paths: are the columns swapped?"
    begin = f"is {files.folder} the folder that the paths in {column!r} start from?"
    return f"{begin} If not, give that folder as root; {ROOT}"


def _found_elsewhere(table: Path, files: Tree) -> str | None:
    for name in files.missed[:LOOKED_AT]:
        if ABSOLUTE.match(name):
            continue
        for folder in _places(table.parent, files.folder):
            if _is_file(folder / name):
                return f"{name!r} lies in {folder}: give that as root; {ROOT}"
        ending = next(
            (end for end in (".jpg", ".png", ".jpeg", ".wav") if _is_file(files.folder / f"{name}{end}")), None
        )
        if ending is not None:
            return f"the names lack their ending: there is a {files.noun} {name + ending!r}"
        if "/" in name and _is_file(files.folder / Path(name).name):
            return f"{Path(name).name!r} lies in {files.folder} itself: leave the folder out of the paths"
    return None


def _places(*near: Path) -> Iterator[Path]:
    """Folders above and below the ones where the files should be."""
    for folder in near:
        yield folder
        yield folder.parent
        try:
            with os.scandir(folder) as entries:
                below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:  # not ours to read: then nothing is suggested from there
            continue
        yield from (folder / name for name in below[:FOLDERS])


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
