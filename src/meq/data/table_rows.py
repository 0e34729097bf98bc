"""From the lines of a table to rows that are small to keep, and from a row to its example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from meq.core.options import nearest
from meq.data.contract import Example
from meq.data.findings import DataError, Findings
from meq.data.jsonl import BadRowError
from meq.data.splitting import SYNONYMS, split_called
from meq.data.table_cells import FileColumn, ModalityColumn, is_empty, plain_text
from meq.data.table_files import TableFile
from meq.data.table_labels import Task


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
        self._check_apart()
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
        rows: list[TableRow] = []
        known: dict[str, int] = {}
        for line, cells in self.file.rows(self.columns, findings):
            try:
                row = self._row(line, cells)
                if known.setdefault(row.id, line) != line:
                    raise BadRowError("duplicate id", f"the id {row.id!r} was used before, in line {known[row.id]}")
            except BadRowError as bad:
                findings.report(bad.kind, str(bad), file=self.file.path, line=line)
            else:
                rows.append(row)
        return rows

    def example(self, row: TableRow) -> Example:
        pairs = zip(self.modalities, row.cells, strict=True)
        content = {modality.name: modality.content(kept) for modality, kept in pairs if kept is not None}
        target = None if self.single.label is None else self.task.target(row.label)
        return Example(id=row.id, content=content, target=target, facts={"line": row.line})

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

    def _check_apart(self) -> None:
        """The label is no input, and no column is two modalities."""
        used = Counter(column for modality in self.modalities for column in modality.columns)
        for column, count in used.items():
            if column == self.single.label:
                raise DataError(f"{column!r} is the label, and would be an input too; a model would only copy it")
            if count > 1:
                raise DataError(f"the column {column!r} is named for more than one modality")
