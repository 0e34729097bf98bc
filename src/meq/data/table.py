"""Any table of yours as a data set: a CSV, JSONL or Parquet file with columns of pictures, texts, sounds and numbers.

    table("data.csv", images="photo", texts="caption", label="y")

Each column becomes a modality of its name, and an empty cell a missing modality. Nothing is decoded here: pictures and
sounds are looked up, and opened when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meq.core.options import checked_options
from meq.data.contract import DataSet, Modality, Rows
from meq.data.findings import DataError, Findings
from meq.data.splitting import FRACTIONS, Fractions, named_fractions, split_by_fractions, torn_apart
from meq.data.table_cells import (
    AudioColumn,
    FileColumn,
    ImageColumn,
    ModalityColumn,
    TextColumn,
    VectorColumn,
    modality_named,
)
from meq.data.table_files import TableFile, open_table
from meq.data.table_labels import make_task
from meq.data.table_pictures import Pictures
from meq.data.table_remedies import no_row, read_rows_or_say_why
from meq.data.table_rows import RowReader, SingleColumns, TableRow

Names = Sequence[str] | str
"""Column names, or one."""


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
    modalities = _modality_columns(file, names, _folder(file.path, root))
    reader = RowReader(
        file,
        modalities,
        make_task(task, label, labels.split(",") if isinstance(labels, str) else labels, separator),
        single=SingleColumns(label=label, id=id, split=split, group=group),
    )
    rows = read_rows_or_say_why(reader, findings)
    if not rows:
        raise no_row(reader, findings, "no row can be used")
    kinds, rows = _settled(file, modalities, rows, findings)
    reader.task.settle([row.label for row in rows])
    places = (
        [row.split for row in rows] if split else split_by_fractions([row.group for row in rows], shares, seed=seed)
    )
    parts = _parts(file, rows, places, findings, split)
    rule = f"column {split!r}" if split else {"fractions": dict(shares), "group": reader.grouped_by, "seed": seed}
    return DataSet(
        name=file.path.name,
        splits={name: Rows(part, reader.example) for name, part in parts.items()},
        modalities=kinds,
        labels=reader.task.labels,
        head=reader.task.head,
        metric=reader.task.metric,
        also=reader.task.also,
        facts=_facts(reader, parts, findings) | {"split by": rule},
    )


def _modality_columns(file: TableFile, asked: Mapping[str, Names], root: Path) -> Sequence[ModalityColumn]:
    names = {kind: _listed(several) for kind, several in asked.items()}
    pictures, sounds = Pictures(root), Pictures(root, noun="sound")
    make: Mapping[str, Callable[[str, list[str]], ModalityColumn]] = {
        "images": lambda name, columns: ImageColumn(name, columns, pictures),
        "texts": TextColumn,
        "audios": lambda name, columns: AudioColumn(name, columns, sounds),
        "vectors": VectorColumn,
    }
    every = [name for several in names.values() for name in several]
    if not every:
        raise DataError(f"{file.path}: name at least one column of images, texts, audios or vectors")
    expanded = file.expand(every)
    made: dict[str, ModalityColumn] = {}
    for kind, several in names.items():
        for name in several:
            if kind != "vectors" and expanded[name] != [name]:
                raise DataError(f"{name!r}: only vectors are joined by a pattern; name each column of {kind}")
            modality = modality_named(name)
            if modality in made:
                raise DataError(f"{name!r} gives a second modality called {modality!r}; rename the column")
            made[modality] = make[kind](modality, expanded[name])
    return list(made.values())


def _settled(
    file: TableFile, modalities: Sequence[ModalityColumn], rows: list[TableRow], findings: Findings
) -> tuple[dict[str, Modality], list[TableRow]]:
    """What each modality is, now that all rows are known, and the rows that agree with it."""
    kinds = {}
    for at, modality in enumerate(modalities):
        kept = [row.cells[at] for row in rows if row.cells[at] is not None]
        if not kept:
            raise DataError(
                f"{file.path}: {', '.join(map(repr, modality.columns))} is empty in every row; leave it out"
            )
        kinds[modality.name] = modality.settle(kept)
    return kinds, [row for row in rows if _agrees(file, modalities, row, findings)]


def _agrees(file: TableFile, modalities: Sequence[ModalityColumn], row: TableRow, findings: Findings) -> bool:
    for modality, kept in zip(modalities, row.cells, strict=True):
        trouble = None if kept is None else modality.wrong(kept)
        if trouble is not None:
            findings.report("wrong width", trouble, file=file.path, line=row.line)
            return False
    return True


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
        "in several splits": dict(_leaks(reader, parts)),
    }


def _leaks(reader: RowReader, parts: Mapping[str, Sequence[TableRow]]) -> Iterator[tuple[str, int]]:
    """For the groups and each column of pictures or sounds, how many lie in more than one split."""
    places = [name for name, part in parts.items() for _ in part]
    rows = [row for part in parts.values() for row in part]
    if reader.grouped_by is not None:
        yield reader.grouped_by, len(torn_apart([row.group for row in rows], places))
    for at, modality in enumerate(reader.modalities):
        if isinstance(modality, FileColumn):
            yield modality.columns[0], len(torn_apart([row.cells[at] for row in rows], places))


def _listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _folder(path: Path, root: Path | str | None) -> Path:
    folder = path.parent if root is None else Path(root)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; root is the folder that the paths of pictures and sounds begin at")
    return folder
