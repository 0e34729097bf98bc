"""Numbers as text: what every instrument prints itself with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Square = Mapping[str, Mapping[str, Tensor]]
"""A value per sample for every pair of modalities, by row and column."""


def middle(values: Tensor) -> float:
    """The median over the samples that have a value, NaN if none has; the lower one of two."""
    return float(values.nanmedian())


def number(value: float) -> str:
    """Three digits, whatever the size."""
    if math.isnan(value):
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:.1e}"


def spread(values: Tensor) -> str:
    """median [smallest, largest], or the one value there is."""
    real = values[~values.isnan()]
    if len(real) == 0:
        return "-"
    if len(real) == 1:
        return number(float(real[0]))
    return f"{number(middle(real))} [{number(float(real.min()))}, {number(float(real.max()))}]"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that line up; the first one to the left, numbers to the right."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    )


def square_table(corner: str, values: Square) -> str:
    """Medians over the samples, a row and a column per modality."""
    columns = list(dict.fromkeys(column for row in values.values() for column in row))
    rows = [[name, *(number(middle(row[c])) if c in row else "" for c in columns)] for name, row in values.items()]
    return text_table([corner, *columns], rows)


def stacked(rows: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, Tensor]]:
    """Values of single samples as one tensor per pair."""
    return {
        a: {b: torch.tensor([row[a][b] for row in rows], dtype=torch.float64) for b in columns}
        for a, columns in rows[0].items()
    }
