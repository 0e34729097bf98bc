"""Any table of yours as a data set: a CSV, JSONL or Parquet file with columns of pictures, texts, sounds and numbers.

    table("data.csv", images="photo", texts="caption", label="y")

Each column becomes a modality of its name, and an empty cell a missing modality. Nothing is decoded here: pictures and
sounds are looked up, and opened when they are needed. `new_rows` reads a table for a model that is trained already.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meq.data.content import ABSOLUTE, URL, Tree
from meq.data.contract import DataSet, Example, Rows, plain_example
from meq.data.files import BadRowError, parse_rows
from meq.data.findings import DataError, Findings
from meq.data.metrics import ACCURACY
from meq.data.splitting import (
    CALIBRATION,
    FRACTIONS,
    SYNONYMS,
    Fractions,
    kept_apart,
    named_fractions,
    split_by_fractions,
    split_called,
    torn_apart,
)
from meq.data.table_columns import (
    CLASSES,
    COLUMN_KINDS,
    TASKS,
    FileColumn,
    ModalityColumn,
    Task,
    ask_about_numbers,
    is_empty,
    make_task,
    modality_named,
    plain_text,
)
from meq.data.table_files import TableFile, open_table
from meq.options import checked_options, nearest

Names = Sequence[str] | str
"""Column names, or one."""
ALL = "all"
"""The one split of new rows without a column of splits."""
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
    calibration: float = 0.0,
    task: str | None = None,
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
    such rows matter. `calibration` is a share of dev that becomes a split of that name, see `kept_apart`, unless the
    column of splits names such rows itself: training chooses nothing by it, so that probabilities can be fitted on it.

    A table with a column of splits that names train and test and no dev has its dev split taken from train, by the
    shares that `fractions` has of the two.

    `task` is "classes" (the order of labels: numbers by value, else the alphabet, unless `labels` gives it), "labels"
    (any of several, with `separator` between them) or "score" (a number). Unless it is given, labels are classes, but
    for numbers that look like scores, which are an error that asks.
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
        make_task(task or CLASSES, label, labels.split(",") if isinstance(labels, str) else labels, separator),
        single=SingleColumns(label=label, id=id, split=split, group=group),
    )
    rows = reader.read(findings)
    if not rows:
        raise reader.no_row(findings, "no row can be used")
    modalities = {}
    for at, modality in enumerate(reader.modalities):
        kept = [row.cells[at] for row in rows if row.cells[at] is not None]
        if not kept:
            empty = ", ".join(map(repr, modality.columns))
            raise DataError(f"{file.path}: {empty} is empty in every row; leave it out")
        modalities[modality.name] = modality.settle(kept)
    rows = reader.agreeing(rows, findings)
    if task is None and labels is None:
        note = ask_about_numbers(label, [row.label for row in rows])
        findings.notes.extend([] if note is None else [note])
    reader.task.settle([row.label for row in rows])
    by_fractions = {"fractions": dict(shares), "group": reader.grouped_by, "seed": seed}
    rule: Any = f"column {split!r}" if split else by_fractions
    if split is None:
        places = split_by_fractions([row.group for row in rows], shares, seed=seed)
    else:
        places = [row.split for row in rows]
        if "train" in places and "dev" not in places:
            places, share = _with_dev(rows, places, shares, seed)
            rule = {"column": split, "dev from train": share, "group": reader.grouped_by, "seed": seed}
            findings.notes.append(
                f"column {split!r} names no dev split, by which the epoch is chosen: {places.count('dev'):,} of the "
                f"rows of train are taken for it (a share of {share:.2f}, seed {seed})"
            )
    parts = _parts(file, rows, places, findings, split)
    if CALIBRATION not in parts:
        parts = _calibrating(parts, calibration, seed)
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


def _with_dev(
    rows: Sequence[TableRow], places: Sequence[str], shares: Mapping[str, float], seed: int
) -> tuple[list[str], float]:
    """The splits of rows that have no dev, with a share of train for it; groups stay together."""
    wanted = {"train": shares["train"], "dev": shares.get("dev", FRACTIONS["dev"])}
    total = sum(wanted.values())
    wanted = {name: share / total for name, share in wanted.items()}
    train = [row.group for row, place in zip(rows, places, strict=True) if place == "train"]
    try:
        again = iter(split_by_fractions(train, wanted, seed=seed))
    except DataError as error:
        raise DataError(f"there is no 'dev' split, which training needs, and train cannot give one: {error}") from error
    return [next(again) if place == "train" else place for place in places], wanted["dev"]


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


def _calibrating(parts: dict[str, list[TableRow]], share: float, seed: int) -> dict[str, list[TableRow]]:
    """A share of dev as a split of its own, the last one, where dev has rows enough."""
    dev = parts.get("dev", [])
    apart = kept_apart([row.group for row in dev], share, seed=seed)
    if not any(apart):
        return parts
    halves = {kept: [row for row, away in zip(dev, apart, strict=True) if away is kept] for kept in (False, True)}
    return {**parts, "dev": halves[False], CALIBRATION: halves[True]}


def _facts(reader: RowReader, parts: Mapping[str, Sequence[TableRow]], findings: Findings) -> dict[str, Any]:
    unseen = reader.task.unseen({name: [row.label for row in part] for name, part in parts.items()})
    if unseen:
        one = reader.task.unseen_in_a_line({name: [row.label for row in part] for name, part in parts.items()})
        findings.absent.append(one)
        findings.notes.append(one)
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
    single = single or SingleColumns()
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
    rows = reader.agreeing(reader.read(findings), findings)
    if not rows:
        raise reader.no_row(findings, "there is no row to read in it")
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
                f"{name!r} holds {known.kinds[name]}, which a table cannot give: use Run.predict with examples"
            )
        made.append(kind(name, columns, root=root, width=known.widths.get(name)))
    return made


def _known_task(known: TableSchema, label: str | None) -> Task:
    if known.head == "choices":
        raise DataError("a row of a table does not offer choices: use Run.predict with examples")
    if label is None:
        return make_task("score", "label", None, known.separator)  # never asked
    if known.head not in TASKS:
        raise DataError(f"a table has no labels of the kind {known.head!r}")
    return make_task(known.head, label, None if known.head == "score" else list(known.labels), known.separator)


# -- from lines to rows that are small to keep, and from a row to its example ------------------------------------------


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

    label: str | None = None
    """None for rows that are there to be answered."""
    id: str | None = None
    split: str | None = None
    group: str | None = None


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
        """The rows of the table. Where bad rows are errors and no file was found, the error gives the remedy too."""
        try:
            records = self.file.rows(self.columns, findings)
            return parse_rows(records, self._row, file=self.file.path, findings=findings)
        except DataError as error:
            advice = self._file_remedy()
            if findings.on_bad == "skip" or advice is None:
                raise
            raise DataError(*error.args, advice) from error

    def no_row(self, findings: Findings, message: str) -> DataError:
        """The error that no row can be used: how many were left out and why, the first of them, and what to do."""
        if not len(findings):
            return DataError(f"{self.file.path}: {message}; the file holds no rows")
        counted = f"{self.file.path}: {message}; {len(findings)} were left out: {dict(findings.counts)}"
        kind, _ = findings.counts.most_common(1)[0]
        advice = self._file_remedy() or BY_KIND.get(kind, "").format(label=self.single.label)
        return DataError(counted, *findings.first(), *([advice] if advice else []))

    def _file_remedy(self) -> str | None:
        """For the first column of pictures or sounds none of which was found."""
        for modality in self.modalities:
            if isinstance(modality, FileColumn) and modality.files.missed and not modality.files.any_found:
                return _remedy(self.file.path, modality.columns[0], modality.files)
        return None

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


# -- where no file of a column was found: the mistake that is likely behind it -----------------------------------------


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
