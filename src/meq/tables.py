"""A table as text for the terminal, Markdown, LaTeX or CSV: the same table, always the same bytes.

Table.of("Scores", [{"arm": "concat", "mean": 0.5}, {"arm": "meq", "mean": 0.7}], titles={"mean": "accuracy"})
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from meq.records import dumps

NOTE_WIDTH = 100
Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Column:
    """How a column is shown."""

    key: str
    """Its name in CSV."""
    title: str
    digits: int = 4
    signed: bool = False

    def show(self, cell: Cell) -> str:
        if cell is None:
            return ""
        if isinstance(cell, float):
            return f"{cell:+.{self.digits}f}" if self.signed else f"{cell:.{self.digits}f}"
        return f"{cell:,}" if isinstance(cell, int) else cell


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns, rows of values, and what has to be said beside them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        title: str,
        rows: Iterable[Mapping[str, Cell]],
        *,
        keys: Sequence[str] | None = None,
        titles: Mapping[str, str] | None = None,
        digits: Mapping[str, int] | None = None,
        signed: Collection[str] = (),
        notes: Sequence[str] = (),
    ) -> Table:
        """A table of rows that give their cells by column; a cell that a row does not have is empty.

        `keys` are the columns in order, by default all that the rows have. `titles` are those that differ from the
        keys, `digits` the places after the point where they are not 4, `signed` the columns that show a plus as well.
        """
        rows = list(rows)
        keys = list(dict.fromkeys(key for row in rows for key in row)) if keys is None else keys
        titles, digits = titles or {}, digits or {}
        columns = (
            Column(key=key, title=titles.get(key, key), digits=digits.get(key, 4), signed=key in signed) for key in keys
        )
        cells = (tuple(row.get(key) for key in keys) for row in rows)
        return cls(title=title, columns=tuple(columns), rows=tuple(cells), notes=tuple(notes))

    def cells(self) -> list[list[str]]:
        return [[column.show(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    def right(self) -> list[bool]:
        """Which columns hold numbers, and are aligned to the right."""
        return [any(isinstance(row[at], int | float) for row in self.rows) for at in range(len(self.columns))]


def as_text(table: Table) -> str:
    grid = [[column.title for column in table.columns], *table.cells()]
    widths = [max(len(row[at]) for row in grid) for at in range(len(table.columns))]
    lines = ["  ".join(_pad(*cell) for cell in zip(row, widths, table.right(), strict=True)).rstrip() for row in grid]
    rule = "  ".join("-" * width for width in widths)
    return _lines([table.title, "", lines[0], rule, *lines[1:], *_apart(table.notes)])


def as_markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    marks = ["---:" if right else "---" for right in table.right()]
    head = [line([column.title for column in table.columns]), line(marks)]
    notes = [text for note in table.notes for text in ("", note)]
    return _lines([f"**{table.title}**", "", *head, *map(line, table.cells()), *notes])


def as_latex(table: Table) -> str:
    """For a document that loads booktabs."""

    def line(cells: list[str]) -> str:
        return f"{' & '.join(map(_tex, cells))} \\\\"

    return _lines(
        [
            f"% {table.title}",
            f"\\begin{{tabular}}{{{''.join('r' if right else 'l' for right in table.right())}}}",
            "\\toprule",
            line([column.title for column in table.columns]),
            "\\midrule",
            *map(line, table.cells()),
            "\\bottomrule",
            "\\end{tabular}",
            *(f"% {note}" for note in table.notes),
        ]
    )


def as_csv(table: Table) -> str:
    """Every digit of every number; what is not there is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([["" if cell is None else cell for cell in row] for row in table.rows])
    return out.getvalue()


FORMATS: Mapping[str, Callable[[Table], str]] = {"txt": as_text, "md": as_markdown, "tex": as_latex, "csv": as_csv}
"""By the ending of their files."""


def as_files(tables: Mapping[str, Table]) -> dict[str, bytes]:
    """Tables in every form of file, by file name."""
    return {
        f"{name}.{ending}": render(table).encode()
        for name, table in tables.items()
        for ending, render in FORMATS.items()
    }


def _pad(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)


def _apart(notes: tuple[str, ...]) -> list[str]:
    return ["", *(line for note in notes for line in textwrap.wrap(note, NOTE_WIDTH))] if notes else []


def _lines(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _tex(cell: str) -> str:
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    shown = "".join(special.get(character, character) for character in cell)
    return f"${shown}$" if shown[:1] in ("+", "-") and shown[1:2].isdigit() else shown


def as_json(table: Table) -> str:
    """A table for machines: its rows by the columns' keys."""
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    return dumps({"title": table.title, "rows": rows, "notes": list(table.notes)})
