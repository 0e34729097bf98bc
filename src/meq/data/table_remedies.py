"""What to do when no row of a table can be used: the first reasons, and the mistake that is likely behind them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from meq.data.findings import DataError, Findings
from meq.data.table_cells import FileColumn, ModalityColumn
from meq.data.table_pictures import ABSOLUTE, URL, Pictures
from meq.data.table_rows import RowReader, TableRow

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


def _remedy(table: Path, column: str, files: Pictures) -> str:
    names = files.missed
    if any(URL.match(name) for name in names):
        return f"column {column!r} holds addresses: download the {files.noun}s first, and write their paths there"
    if all(ABSOLUTE.match(name) for name in names):
        outside = f"the paths in {column!r} are absolute and lie outside of {files.root}"
        return f"{outside}: give {_above(names)} as root; {ROOT}"
    if any(".." in name.split("/") for name in names):
        return f"the paths in {column!r} go up with '..': write them relative to a folder above, and give that as root"
    elsewhere = _found_elsewhere(table, files)
    if elsewhere is not None:
        return elsewhere
    if all(" " in name and not Path(name).suffix.strip(".").isalnum() for name in names):
        return f"the cells of {column!r} read like texts, not like paths: are the columns swapped?"
    return (
        f"is {files.root} the folder that the paths in {column!r} start from? If not, give that folder as root; {ROOT}"
    )


def _above(names: Sequence[str]) -> str:
    try:
        return os.path.commonpath([os.path.dirname(name) for name in names]) or os.sep
    except ValueError:  # absolute on another system, or on several drives
        return "the folder above them"


def _found_elsewhere(table: Path, files: Pictures) -> str | None:
    for name in files.missed[:LOOKED_AT]:
        if ABSOLUTE.match(name):
            continue
        for folder in _places(table.parent, files.root):
            if _is_file(folder / name):
                return f"{name!r} lies in {folder}: give that as root; {ROOT}"
        ending = next((end for end in (".jpg", ".png", ".jpeg", ".wav") if _is_file(files.root / f"{name}{end}")), None)
        if ending is not None:
            return f"the names lack their ending: there is a {files.noun} {name + ending!r}"
        if "/" in name and _is_file(files.root / Path(name).name):
            return f"{Path(name).name!r} lies in {files.root} itself: leave the folder out of the paths"
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
