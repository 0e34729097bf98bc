"""New rows for a model that is trained already: a table with the columns of the one it learned from.

What a column holds, how wide it is and which labels there are is known, so nothing is decided by the rows themselves:
one row is read as a million are. Labels are read where they are asked for, and then must be among those known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meq.data.contract import DataSet, Modality, Rows, features
from meq.data.findings import DataError, Findings
from meq.data.metrics import ACCURACY
from meq.data.table_cells import AudioColumn, ImageColumn, ModalityColumn, TextColumn, VectorColumn
from meq.data.table_files import TableFile, open_table
from meq.data.table_labels import TASKS, Task, make_task
from meq.data.table_pictures import Pictures
from meq.data.table_remedies import no_row, read_rows_or_say_why
from meq.data.table_rows import RowReader, SingleColumns, TableRow

ALL = "all"
"""The one split of a table without a column of splits."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What training settled about a table."""

    columns: Mapping[str, Sequence[str]]
    """By modality."""
    kinds: Mapping[str, str]
    """By modality: image, text, audio or features."""
    widths: Mapping[str, int]
    """By modality that holds features: numbers per token."""
    head: str
    labels: Sequence[str]
    separator: str = "|"


def new_rows(
    path: Path | str,
    known: Known,
    *,
    root: Path | None = None,
    single: SingleColumns | None = None,
    delimiter: str | None = None,
    findings: Findings | None = None,
) -> DataSet:
    """The rows of a table, in its order, as a data set with one split, or with those of the column `single.split`.

    Without `single.label` the examples have no target. An empty cell is a missing modality; a column that is not there
    is an error.
    """
    findings = findings if findings is not None else Findings()
    single = single or SingleColumns(label=None, id=None, split=None, group=None)
    file = open_table(path, delimiter=delimiter)
    _check_columns(file, known)
    modalities = _modality_columns(file.path, known, root)
    task = _task(known, single.label)
    reader = RowReader(file, modalities, task, single=single)
    rows = [row for row in read_rows_or_say_why(reader, findings) if _fits(file, modalities, row, findings)]
    if not rows:
        raise no_row(reader, findings, "there is no row to read in it")
    splits: dict[str, list[TableRow]] = {}
    for row in rows:
        splits.setdefault(row.split or ALL, []).append(row)
    return DataSet(
        name=file.path.name,
        splits={name: Rows(part, reader.example) for name, part in splits.items()},
        modalities={name: _modality(known, name) for name in known.columns},
        labels=tuple(known.labels),
        head=known.head,
        metric=ACCURACY if single.label is None else task.metric,
        also=() if single.label is None else task.also,
        facts={"file": file.path.name, "rows": len(rows)},
    )


def has_column(path: Path | str, name: str, *, delimiter: str | None = None) -> bool:
    """Whether a table has a column of that name."""
    return name in open_table(path, delimiter=delimiter).columns(frozenset([name]))


def _check_columns(file: TableFile, known: Known) -> None:
    wanted = [column for columns in known.columns.values() for column in columns]
    try:
        file.expand(wanted)
    except DataError as error:
        raise DataError(
            f"{error} The model was trained with {', '.join(map(repr, wanted))}; where one of them is not known, give "
            "the column with empty cells"
        ) from error


def _modality_columns(path: Path, known: Known, root: Path | None) -> list[ModalityColumn]:
    folder = path.parent if root is None else root
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; root is the folder that the paths of pictures and sounds begin at")
    pictures, sounds = Pictures(folder), Pictures(folder, noun="sound")
    made: list[ModalityColumn] = []
    for name, columns in known.columns.items():
        kind = known.kinds[name]
        if kind == "image":
            made.append(ImageColumn(name, columns, pictures))
        elif kind == "audio":
            made.append(AudioColumn(name, columns, sounds))
        elif kind == "text":
            made.append(TextColumn(name, columns))
        elif kind == "features":
            numbers = VectorColumn(name, columns)
            numbers.width = known.widths[name]
            made.append(numbers)
        else:
            raise DataError(f"{name!r} holds {kind}, which a table cannot give: use TrainedRun.predict with examples")
    return made


def _fits(file: TableFile, modalities: Sequence[ModalityColumn], row: TableRow, findings: Findings) -> bool:
    """Numbers of another width than the model was trained on cannot be read."""
    for modality, kept in zip(modalities, row.cells, strict=True):
        if not isinstance(modality, VectorColumn) or kept is None or kept.shape[-1] == modality.width:
            continue
        message = f"column {modality.columns[0]!r} holds {kept.shape[-1]} numbers, the model was trained on "
        findings.report("wrong width", f"{message}{modality.width}", file=file.path, line=row.line)
        return False
    return True


def _modality(known: Known, name: str) -> Modality:
    kind = known.kinds[name]
    return features(known.widths[name]) if kind == "features" else Modality(kind=kind)  # type: ignore[arg-type]


def _task(known: Known, label: str | None) -> Task:
    if known.head == "choices":
        raise DataError("a row of a table does not offer choices: use TrainedRun.predict with examples")
    if label is None:
        return make_task("score", "label", None, known.separator)  # never asked
    if known.head not in TASKS:
        raise DataError(f"a table has no labels of the kind {known.head!r}")
    return make_task(known.head, label, None if known.head == "score" else list(known.labels), known.separator)
