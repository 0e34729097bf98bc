"""Results that show themselves: as text, in a notebook, and as a pandas DataFrame where they are tables.

class Scores(Tabular):
    def __str__(self): return "dev: 0.5"
    def rows(self): return [{"split": "dev", "accuracy": 0.5}]

Scores().to_frame()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from meq.errors import require

ROWS_DRAWN = 20
"""Rows of a table that a notebook draws; the frame and the files have all of them."""


class Shown:
    """Whatever has `__str__`: a notebook draws the same text."""

    def _repr_html_(self) -> str:
        return _text(str(self))


class Tabular(Shown):
    """A result that is a table: `rows` says of what."""

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Plain values by column, a dictionary per row."""
        raise NotImplementedError

    def remarks(self) -> Sequence[str]:
        """What has to be said beside the table."""
        return ()

    def row_names(self) -> Sequence[Any] | None:
        """The index of the frame, where rows have names of their own; None: they are counted."""
        return None

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame; pandas comes with the extra "frames"."""
        require("pandas", "a DataFrame")
        import pandas

        names = self.row_names()
        return pandas.DataFrame([dict(row) for row in self.rows()], index=None if names is None else list(names))

    def _repr_html_(self) -> str:
        rows = self.rows()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        head = _line("th", columns)
        body = "".join(_line("td", [row.get(name) for name in columns]) for row in rows[:ROWS_DRAWN])
        more = [f"and {len(rows) - ROWS_DRAWN:,} more rows"] if len(rows) > ROWS_DRAWN else []
        said = "\n".join([*more, *self.remarks()])
        table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
        return table + (_text(said) if said else "")


def _line(tag: str, cells: Iterable[Any]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(_cell(cell))}</{tag}>' for cell in cells)}</tr>"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _text(words: str) -> str:
    return f"<pre>{escape(words)}</pre>"
