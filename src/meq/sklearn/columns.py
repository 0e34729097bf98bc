"""What the columns of X are: pictures, texts, categories or numbers; and which numbers make a modality.

The role of a column of a frame is the one it is given, or else found by its dtype and its look:

- numbers and truth values are numbers; a pandas `category` is a category;
- texts that all end like the name of a picture are pictures;
- texts with few different values of a few words each are categories;
- all other texts are texts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meq.data.files import BadRowError
from meq.data.findings import DataError
from meq.data.table_columns import is_empty, modality_named, plain_text
from meq.options import nearest

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
MOST_CATEGORIES, MOST_WORDS = 20, 3
"""Texts of at most so many different values, each of at most so many words and twice in the table on average, are
categories."""
ROLES = ("images", "texts", "numbers", "categories")
Columns = Sequence[Any] | None
Groups = Sequence[Columns] | Mapping[str, Columns] | None


def is_frame(x: Any) -> bool:
    """Whether this is a pandas DataFrame; where pandas was never imported, nothing is."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(x, pandas.DataFrame)


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The columns of a frame by what they are."""

    images: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]]
    """By column: its values in training, in order. A value that is not among them, and a missing one, is none."""

    @property
    def only_numbers(self) -> bool:
        return not (self.images or self.texts or self.categories)

    def contents(self) -> dict[str, tuple[Any, str]]:
        """By modality that has to be encoded: its column, and what it holds."""
        kinds = [(column, "image") for column in self.images] + [(column, "text") for column in self.texts]
        found: dict[str, tuple[Any, str]] = {}
        for column, kind in kinds:
            name = modality_named(str(column))
            if name in found:
                raise DataError(
                    f"the columns {found[name][0]!r} and {column!r} would both be called {name!r}: rename one"
                )
            found[name] = (column, kind)
        return found


def find_roles(frame: Any, asked: Mapping[str, Columns]) -> Roles:
    """The role of every column: the one it is `asked` to have, by the names of ROLES, or the one it looks like."""
    names = list(frame.columns)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"X has more than one column {twice!r}: rename one of them")
    given: dict[Any, str] = {}
    for role in ROLES:
        for column in _listed(role, asked.get(role)):
            if column not in names:
                raise DataError(f"X has no column {column!r}, which `{role}` names: {nearest(column, map(str, names))}")
            if column in given:
                raise DataError(f"the column {column!r} is named twice, in `{given[column]}` and in `{role}`")
            given[column] = role
    found = {column: given.get(column) or looks_like(frame[column], column) for column in names}
    values = {column: _values(frame[column]) for column, role in found.items() if role == "categories"}
    plain = {role: tuple(name for name in names if found[name] == role) for role in ROLES if role != "categories"}
    return Roles(**plain, categories=values)


def _listed(role: str, columns: Columns) -> list[Any]:
    if columns is None:
        return []
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise TypeError(f"`{role}` must be a list of columns, got {columns!r:.80}")
    return list(columns)


def looks_like(cells: Any, column: Any) -> str:
    """The role that a column looks like."""
    from pandas import CategoricalDtype
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype, is_object_dtype, is_string_dtype

    if isinstance(cells.dtype, CategoricalDtype):
        return "categories"
    if (is_numeric_dtype(cells) and not is_complex_dtype(cells)) or is_bool_dtype(cells):
        return "numbers"
    if not (is_object_dtype(cells) or is_string_dtype(cells)):
        raise DataError(f"column {column!r} holds {cells.dtype}: turn it into numbers or texts, or leave it out")
    known = [cell for cell in plain_cells(cells) if cell is not None]
    if not known:
        raise DataError(f"column {column!r} holds nothing: leave it out, or say what it is (`{'`, `'.join(ROLES)}`)")
    if all(isinstance(cell, int | float | np.number) for cell in known):
        return "numbers"
    odd = next((cell for cell in known if not isinstance(cell, str)), None)
    if odd is not None:
        raise DataError(f"column {column!r} holds a {type(odd).__name__} ({odd!r:.40}) among texts: make it one kind")
    if all(cell.strip().lower().endswith(PICTURES) for cell in known):
        return "images"
    few = len(set(known)) <= min(MOST_CATEGORIES, len(known) / 2)
    return "categories" if few and all(len(cell.split()) <= MOST_WORDS for cell in known) else "texts"


def _values(cells: Any) -> tuple[str, ...]:
    """The different values of a column of categories, in order."""
    return tuple(sorted({_said(cell, cells.name) for cell in plain_cells(cells) if cell is not None}))


def _said(cell: Any, column: Any) -> str:
    """A category as a text; a whole number is the same one whether its column holds floats or not."""
    try:
        return plain_text(cell, str(column), "wrong category")
    except BadRowError as bad:
        raise DataError(str(bad)) from bad


def plain_cells(cells: Any) -> list[Any]:
    """The cells of a column, None for those that are missing in any of the ways that pandas knows, or blank."""
    return [None if gone or is_empty(cell) else cell for cell, gone in zip(cells, cells.isna(), strict=True)]


@dataclass(frozen=True, eq=False)
class Numbers:
    """All numbers of a frame side by side: those of its columns, and ones and zeros for each category."""

    matrix: np.ndarray[Any, Any]
    """(rows, numbers), float64."""
    columns: tuple[int, ...]
    """For each of them, the place of its column in X."""


def numbers_of(frame: Any, roles: Roles) -> Numbers:
    """The numbers of a frame. A number that is missing is an error that says where."""
    parts: list[np.ndarray[Any, Any]] = []
    columns: list[int] = []
    for place, column in enumerate(frame.columns):
        if column in roles.categories:
            parts.append(_ones(frame[column], roles.categories[column]))
        elif column in roles.numbers:
            parts.append(_finite(frame[column], column))
        else:
            continue
        columns += [place] * parts[-1].shape[1]
    matrix = np.concatenate(parts, axis=1) if parts else np.zeros((len(frame), 0))
    return Numbers(matrix, tuple(columns))


def _ones(cells: Any, values: Sequence[str]) -> np.ndarray[Any, Any]:
    said = ["" if cell is None else _said(cell, cells.name) for cell in plain_cells(cells)]
    return (np.array(said, dtype=object)[:, None] == np.array(values, dtype=object)[None]).astype(np.float64)


def _finite(cells: Any, column: Any) -> np.ndarray[Any, Any]:
    try:
        numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise DataError(f"column {column!r} holds something that is no number: {error!s:.80}") from error
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise DataError(
            f"column {column!r} has no finite number in row {bad[0]} ({len(bad)} rows in all): fill them first, with "
            "sklearn.impute.SimpleImputer or X.fillna"
        )
    return numbers[:, None]


def grouped(groups: Groups, names: Sequence[Any], columns: Sequence[int], *, alone: bool) -> dict[str, list[int]]:
    """By modality: the places of its numbers, which come from these `columns` of X.

    `groups` are lists of columns, by number or name, or a dict from modality to such a list. Without any, numbers that
    stand `alone` make two modalities, the first half of the columns and the second; beside pictures or texts they are
    one.
    """
    used = sorted(set(columns))
    if groups is None:
        half = (len(used) + 1) // 2
        asked = {"numbers": used} if not alone else {"first": used[:half], "second": used[half:]}
    else:
        asked = {name: _places(name, group, names) for name, group in _named(groups).items()}
        _refuse_no_number(asked, names, used)
    by_name = {name: [at for at, column in enumerate(columns) if column in group] for name, group in asked.items()}
    return {name: places for name, places in by_name.items() if places}


def _named(groups: Any) -> dict[str, Columns]:
    if isinstance(groups, Mapping):
        return dict(groups)
    if isinstance(groups, str) or not isinstance(groups, Sequence) or not groups:
        raise TypeError(f"`groups` must be lists of columns such as [[0, 1], [2, 3]], got {groups!r:.80}")
    return {f"group_{number}": group for number, group in enumerate(groups)}


def _places(name: str, group: Any, names: Sequence[Any]) -> list[int]:
    """The places in X of a group's columns, which are given by number or by name."""
    if isinstance(group, str) or not isinstance(group, Sequence | np.ndarray) or not len(group):
        raise TypeError(f"`groups`: {name!r} must be a list of columns, got {group!r:.80}")
    found = []
    for column in group:
        if isinstance(column, str):
            if column not in names:
                raise DataError(f"`groups`: X has no column {column!r}: {nearest(column, map(str, names))}")
            found.append(list(names).index(column))
        elif isinstance(column, int | np.integer) and -len(names) <= column < len(names):
            found.append(int(column) % len(names))
        else:
            raise DataError(f"`groups`: {name!r} has the column {column!r}, and X has columns 0 to {len(names) - 1}")
    return found


def _refuse_no_number(asked: Mapping[str, list[int]], names: Sequence[Any], used: Sequence[int]) -> None:
    for name, group in asked.items():
        for place in group:
            if place not in used:
                raise DataError(
                    f"`groups`: {name!r} has the column {names[place]!r}, which is a picture or a text: that is a "
                    "modality by itself, and groups are of numbers"
                )
