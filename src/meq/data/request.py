"""What to read, as people ask for it: a data set by name, or a table of theirs with its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meq.core.options import nearest
from meq.data import registry
from meq.data.contract import DataSet
from meq.data.findings import DataError, Findings
from meq.data.registry import open_data
from meq.data.strict_json import JsonError, parse_json
from meq.data.table import table
from meq.data.table_files import is_table


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

    def open(self, findings: Findings | None = None) -> DataSet:
        """Read it; `findings` decides what a bad row does."""
        if not is_table(self.data):
            self._check_no_columns()
            return open_data(self.data, self.root, findings=findings, **self.options)
        if self.label is None:
            raise DataError(f"{self.data}: name the column that holds the labels (--label)")
        if not (self.images or self.texts or self.audios or self.vectors):
            raise DataError(
                f"{self.data}: name at least one column to learn from (--image, --text, --audio, --vector; two or more "
                "for a mutual equilibrium)"
            )
        columns = {"images": self.images, "texts": self.texts, "audios": self.audios, "vectors": self.vectors}
        placed = {"label": self.label, "split": self.split, "group": self.group, "root": self.root}
        options = {name: _as_text(name, value) for name, value in self.options.items()}
        return table(Path(self.data), **columns, **placed, findings=findings, **options)  # type: ignore[arg-type]

    def _check_no_columns(self) -> None:
        if self.data not in registry.DATA_SETS:
            raise DataError(
                f"there is no data set {self.data!r}: {nearest(self.data, registry.DATA_SETS)} Or give a table of your "
                "own: a path that ends in .csv, .tsv, .jsonl or .parquet."
            )
        columns = ("images", "texts", "audios", "vectors", "label", "split", "group")
        named = [name for name in columns if getattr(self, name)]
        if named:
            raise DataError(f"{self.data!r} knows its own columns: leave out {', '.join(named)}")


def _as_text(name: str, value: Any) -> Any:
    """A column called 7 stays a name, although --set reads numbers where it can."""
    if name in ("id", "task", "separator", "delimiter") and isinstance(value, int | float):
        return str(value)
    return value


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
