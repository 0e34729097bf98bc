"""Any table of yours as a data set: a CSV, JSONL or Parquet file with columns of pictures, texts, sounds and numbers.

    table("data.csv", images="photo", texts="caption", label="y")

Each column becomes a modality of its name, and an empty cell a missing modality. Nothing is decoded here: pictures and
sounds are looked up, and opened when they are needed. `new_rows` reads a table for a model that is trained already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meq.data.contract import DataSet, Modality, Rows
from meq.data.findings import DataError, Findings
from meq.data.metrics import ACCURACY
from meq.data.splitting import FRACTIONS, Fractions, named_fractions, split_by_fractions, torn_apart
from meq.data.table_columns import COLUMN_KINDS, FileColumn, ModalityColumn, modality_named
from meq.data.table_files import TableFile, open_table
from meq.data.table_labels import TASKS, Task, make_task
from meq.data.table_rows import RowReader, SingleColumns, TableRow, no_row, read_rows_or_say_why
from meq.options import checked_options

Names = Sequence[str] | str
"""Column names, or one."""
ALL = "all"
"""The one split of new rows without a column of splits."""


@checked_options
def table(
    path: Path | str,
    *,
    label: str,
    images: Names = (),
    texts: Names = (),
    audios: Names = (),
    vectors: Names = (),
    id: str | None = None,  # noqa: A002, the word on the command line
    root: Path | str | None = None,
    split: str | None = None,
    fractions: Fractions = FRACTIONS,
    group: str | None = None,
    seed: int = 0,
    task: str = "classes",
    labels: Sequence[str] | str | None = None,
    separator: str = "|",
    delimiter: str | None = None,
    findings: Findings | None = None,
) -> DataSet:
    """Read a table. Whatever column is named must be there; columns that are not named are ignored.

    `images`, and `audios` (WAV), are paths below `root`, by default the folder of the file, relative to it or absolute;
    paths and symlinks that leave it, and `..`, are refused. `vectors` are lists of numbers, or texts of them; a pattern
    such as `audio_*` joins columns to one vector. A line without a label, or with no modality at all, is a finding.

    `split` names a column with the split of each row. Without it rows are split by `fractions`, by name or as two or
    three numbers for train, dev and test (a text such as "0.6,0.2,0.2" too), seeded. Rows with the same `group` stay
    together; by default that is the first picture, or else the first sound, so that nothing of that column is in two
    splits. A row without a group stands alone, known by its id; only where there is no `id` column does the order of
    such rows matter.

    `task` is "classes" (the order of labels: numbers by value, else the alphabet, unless `labels` gives it), "labels"
    (any of several, with `separator` between them) or "score" (a number).
    """
    findings = findings if findings is not None else Findings()
    shares = named_fractions(fractions)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise DataError(f"{path}: the seed of the split is a whole number, got {seed!r}")
    file = open_table(path, delimiter=delimiter)
    names = {"images": images, "texts": texts, "audios": audios, "vectors": vectors}
    reader = RowReader(
        file,
        _modality_columns(file, names, _root(file.path, root)),
        make_task(task, label, labels.split(",") if isinstance(labels, str) else labels, separator),
        single=SingleColumns(label=label, id=id, split=split, group=group),
    )
    rows = read_rows_or_say_why(reader, findings)
    if not rows:
        raise no_row(reader, findings, "no row can be used")
    modalities = _settled(reader, rows)
    rows = reader.agreeing(rows, findings)
    reader.task.settle([row.label for row in rows])
    places = (
        [row.split for row in rows] if split else split_by_fractions([row.group for row in rows], shares, seed=seed)
    )
    parts = _parts(file, rows, places, findings, split)
    rule = f"column {split!r}" if split else {"fractions": dict(shares), "group": reader.grouped_by, "seed": seed}
    return DataSet(
        name=file.path.name,
        splits={name: Rows(part, reader.example) for name, part in parts.items()},
        modalities=modalities,
        labels=reader.task.labels,
        head=reader.task.head,
        metric=reader.task.metric,
        also=reader.task.also,
        facts=_facts(reader, parts, findings) | {"split by": rule},
    )


def _modality_columns(file: TableFile, asked: Mapping[str, Names], root: Path) -> Sequence[ModalityColumn]:
    names = {option: [several] if isinstance(several, str) else list(several) for option, several in asked.items()}
    every = [name for several in names.values() for name in several]
    if not every:
        raise DataError(f"{file.path}: name at least one column of images, texts, audios or vectors")
    expanded = file.expand(every)
    made: dict[str, ModalityColumn] = {}
    for option, several in names.items():
        kind = COLUMN_KINDS[option]
        for name in several:
            if not kind.takes_patterns and expanded[name] != [name]:
                raise DataError(f"{name!r}: only vectors are joined by a pattern; name each column of {option}")
            modality = modality_named(name)
            if modality in made:
                raise DataError(f"{name!r} gives a second modality called {modality!r}; rename the column")
            made[modality] = kind(modality, expanded[name], root=root)
    return list(made.values())


def _root(path: Path, root: Path | str | None) -> Path:
    folder = path.parent if root is None else Path(root)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; root is the folder that the paths of pictures and sounds begin at")
    return folder


def _settled(reader: RowReader, rows: Sequence[TableRow]) -> dict[str, Modality]:
    """What each modality is, now that all rows are known."""
    kinds = {}
    for at, modality in enumerate(reader.modalities):
        kept = [row.cells[at] for row in rows if row.cells[at] is not None]
        if not kept:
            names = ", ".join(map(repr, modality.columns))
            raise DataError(f"{reader.file.path}: {names} is empty in every row; leave it out")
        kinds[modality.name] = modality.settle(kept)
    return kinds


def _parts(
    file: TableFile, rows: Sequence[TableRow], places: Sequence[str], findings: Findings, split: str | None
) -> dict[str, list[TableRow]]:
    """The rows of each split; train and dev must be there, and train must have something to tell apart."""
    parts: dict[str, list[TableRow]] = {name: [] for name in ("train", "dev", "test", *sorted(set(places)))}
    for row, place in zip(rows, places, strict=True):
        parts[place].append(row)
    for name in ("train", "dev"):
        if not parts[name]:
            advice = (
                f"no row of column {split!r} says so; without split, rows are split by fractions"
                if split
                else "add it to the fractions"
            )
            raise DataError(f"{file.path}: there is no {name!r} split, which training needs: {advice}")
    if len({row.label for row in parts["train"]}) < 2:
        raise DataError(
            f"{file.path}: all {len(parts['train'])} rows of train have the same label; there is nothing to learn"
        )
    if not parts["test"]:
        findings.absent.append("test: no row is of this split")
    return {name: part for name, part in parts.items() if part}


def _facts(reader: RowReader, parts: Mapping[str, Sequence[TableRow]], findings: Findings) -> dict[str, Any]:
    unseen = reader.task.unseen({name: [row.label for row in part] for name, part in parts.items()})
    findings.absent.extend(unseen)
    rows = [row for part in parts.values() for row in part]
    places = [name for name, part in parts.items() for _ in part]
    # for the groups and each column of pictures or sounds, how many lie in more than one split
    leaks = {}
    if reader.grouped_by is not None:
        leaks[reader.grouped_by] = len(torn_apart([row.group for row in rows], places))
    for at, modality in enumerate(reader.modalities):
        if isinstance(modality, FileColumn):
            leaks[modality.columns[0]] = len(torn_apart([row.cells[at] for row in rows], places))
    columns = {modality.name: list(modality.columns) for modality in reader.modalities}
    return {
        "file": reader.file.path.name,
        "rows": len(rows),
        "columns": columns,
        "renamed": {names[0]: name for name, names in columns.items() if len(names) == 1 and names[0] != name},
        "missing cells": {
            modality.name: sum(row.cells[at] is None for row in rows) for at, modality in enumerate(reader.modalities)
        },
        "label": reader.task.column,
        "label counts": {name: reader.task.counts([row.label for row in part]) for name, part in parts.items()},
        "never in train": unseen,
        "in several splits": leaks,
    }


# -- new rows for a model that is trained already ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """What training settled about a table: columns, kinds, widths and labels."""

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
    known: TableSchema,
    *,
    root: Path | None = None,
    single: SingleColumns | None = None,
    delimiter: str | None = None,
    findings: Findings | None = None,
) -> DataSet:
    """The rows of a table, in its order, as a data set with one split, or with those of the column `single.split`.

    What a column holds, how wide it is and which labels there are is known, so nothing is decided by the rows
    themselves: one row is read as a million are. An empty cell is a missing modality; a column that is not there is an
    error. Without `single.label` the examples have no target; a label must be among those known.
    """
    findings = findings if findings is not None else Findings()
    single = single or SingleColumns(label=None, id=None, split=None, group=None)
    file = open_table(path, delimiter=delimiter)
    wanted = [column for columns in known.columns.values() for column in columns]
    try:
        file.expand(wanted)
    except DataError as error:
        raise DataError(
            f"{error} The model was trained with {', '.join(map(repr, wanted))}; where one of them is not known, give "
            "the column with empty cells"
        ) from error
    modalities = _known_columns(known, _root(file.path, root))
    task = _known_task(known, single.label)
    reader = RowReader(file, modalities, task, single=single)
    kinds = {modality.name: modality.settle(()) for modality in modalities}
    rows = reader.agreeing(read_rows_or_say_why(reader, findings), findings)
    if not rows:
        raise no_row(reader, findings, "there is no row to read in it")
    splits: dict[str, list[TableRow]] = {}
    for row in rows:
        splits.setdefault(row.split or ALL, []).append(row)
    return DataSet(
        name=file.path.name,
        splits={name: Rows(part, reader.example) for name, part in splits.items()},
        modalities=kinds,
        labels=tuple(known.labels),
        head=known.head,
        metric=ACCURACY if single.label is None else task.metric,
        also=() if single.label is None else task.also,
        facts={"file": file.path.name, "rows": len(rows)},
    )


def has_column(path: Path | str, name: str, *, delimiter: str | None = None) -> bool:
    """Whether a table has a column of that name."""
    return name in open_table(path, delimiter=delimiter).columns(frozenset([name]))


def _known_columns(known: TableSchema, root: Path) -> list[ModalityColumn]:
    kinds = {column.kind: column for column in COLUMN_KINDS.values()}
    made = []
    for name, columns in known.columns.items():
        kind = kinds.get(known.kinds[name])  # type: ignore[call-overload]
        if kind is None:
            raise DataError(
                f"{name!r} holds {known.kinds[name]}, which a table cannot give: use TrainedRun.predict with examples"
            )
        made.append(kind(name, columns, root=root, width=known.widths.get(name)))
    return made


def _known_task(known: TableSchema, label: str | None) -> Task:
    if known.head == "choices":
        raise DataError("a row of a table does not offer choices: use TrainedRun.predict with examples")
    if label is None:
        return make_task("score", "label", None, known.separator)  # never asked
    if known.head not in TASKS:
        raise DataError(f"a table has no labels of the kind {known.head!r}")
    return make_task(known.head, label, None if known.head == "score" else list(known.labels), known.separator)
