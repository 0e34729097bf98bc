"""Numbers as text: what every instrument prints itself with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from jaxtyping import Float
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


def column(values: Iterable[float]) -> Float[Tensor, " B"]:
    """Values of single samples as one tensor."""
    return torch.tensor(list(values), dtype=torch.float64)


def join_samples(parts: Sequence[Any]) -> Any:
    """Results of single samples as one result of the batch: tensors one after the other, counts added up."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, dict):
        return {key: join_samples([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(join_samples(each) for each in zip(*parts, strict=True))
    if is_dataclass(first):
        kind: Any = type(first)
        return kind(**{x.name: join_samples([getattr(part, x.name) for part in parts]) for x in fields(first)})
    return None if first is None else sum(parts)
