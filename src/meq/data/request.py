"""What to read, as people ask for it: a data set by name, or a table of theirs with its columns."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meq.core.options import nearest
from meq.data import registry
from meq.data.contract import DataSet
from meq.data.findings import DataError, Findings
from meq.data.option_values import check_option_values
from meq.data.registry import open_data
from meq.data.strict_json import JsonError, parse_json
from meq.data.table import table
from meq.data.table_files import is_table

COLUMNS = ("images", "texts", "audios", "vectors", "label", "split", "group")


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """A data set before it is read."""

    data: str
    """A name that `meq data list` shows, or the path of a CSV, JSONL or Parquet file."""
    root: Path | None = None
    """The data set's folder; for a table the folder that the paths of its pictures and sounds start from."""
    images: Sequence[str] = ()
    texts: Sequence[str] = ()
    audios: Sequence[str] = ()
    vectors: Sequence[str] = ()
    label: str | None = None
    split: str | None = None
    group: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the data set, or of `meq.data.table`."""

    def check(self) -> None:
        """An error for what can be known to be wrong before a file is opened: names, options, places."""
        if not is_table(self.data):
            self._check_no_columns()
            entry = registry.DATA_SETS[self.data]
            check_option_values(self.options, entry.read, f"the data set {self.data!r}", without=("root", "findings"))
            return
        self._check_columns()
        check_option_values(self._table_options(), table, "a table", without=(*COLUMNS, "path", "root", "findings"))

    def open(self, findings: Findings | None = None) -> DataSet:
        """Read it; `findings` decides what a bad row does."""
        self.check()
        if not is_table(self.data):
            return open_data(self.data, self.root, findings=findings, **self.options)
        columns = {"images": self.images, "texts": self.texts, "audios": self.audios, "vectors": self.vectors}
        placed = {"label": self.label, "split": self.split, "group": self.group, "root": self.root}
        options = self._table_options()
        return table(Path(self.data), **columns, **placed, findings=findings, **options)  # type: ignore[arg-type]

    def _table_options(self) -> dict[str, Any]:
        return {name: _as_text(name, value) for name, value in self.options.items()}

    def _check_columns(self) -> None:
        if self.label is None:
            raise DataError(f"{self.data}: name the column that holds the labels (--label)")
        if not (self.images or self.texts or self.audios or self.vectors):
            raise DataError(
                f"{self.data}: name at least one column to learn from (--image, --text, --audio, --vector; two or more "
                "for a mutual equilibrium)"
            )
        if not Path(self.data).is_file():
            raise DataError(f"{self.data}: there is no such file{nearest_beside(Path(self.data))}")
        if self.root is not None and not self.root.is_dir():
            raise DataError(f"{self.root} is not a folder: the paths of pictures and sounds in {self.data} begin there")

    def _check_no_columns(self) -> None:
        if self.data not in registry.DATA_SETS:
            folder = Path(self.data).parent
            tables = [str(each) for each in folder.iterdir() if is_table(each)] if folder.is_dir() else []
            close = difflib.get_close_matches(self.data, tables, n=1, cutoff=0.6)
            meant = f"did you mean the table {close[0]!r}? " if close else ""
            raise DataError(
                f"there is no data set {self.data!r}: {meant}{nearest(self.data, registry.DATA_SETS)} Or give a table "
                "of your own: a path that ends in .csv, .tsv, .jsonl or .parquet."
            )
        named = [f"`{name}`" for name in COLUMNS if getattr(self, name)]
        if named:
            raise DataError(f"{self.data!r} knows its own columns: leave out {', '.join(named)}")


def _as_text(name: str, value: Any) -> Any:
    """A column called 7 stays a name, although --set reads numbers where it can."""
    if name in ("id", "task", "separator", "delimiter") and isinstance(value, int | float):
        return str(value)
    return value


def nearest_beside(path: Path) -> str:
    """For a file that is not there: the nearest name in its folder, as the end of a sentence."""
    if not path.parent.is_dir():
        return f", nor a folder {path.parent}"
    close = difflib.get_close_matches(path.name, [each.name for each in path.parent.iterdir()], n=1, cutoff=0.6)
    return f": did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def parse_options(settings: Sequence[str]) -> dict[str, Any]:
    """["seed=1", "kinds=[\\"binding\\"]", "split=paper"] as a dictionary; values are JSON, or else plain text."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise DataError(f"an option is written NAME=VALUE, got {setting!r}")
        try:
            options[name] = parse_json(value)
        except JsonError:
            options[name] = value
    return options
