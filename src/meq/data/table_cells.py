"""What the cells of a table mean: the path of a picture or a sound, a text, numbers.

A column, or several as one, becomes a modality. An empty cell, null or NaN is a missing modality. Everything else that
cannot be used is a `BadRowError`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from meq.data.content import Content, PictureFile, SoundFile
from meq.data.contract import AUDIO, IMAGE, TEXT, Modality, features
from meq.data.findings import DataError
from meq.data.jsonl import BadRowError, text_of
from meq.data.strict_json import JsonError, parse_json
from meq.data.table_pictures import Pictures

NO_NUMBERS = ("", "nan", "null", "none")
"""How a text says that there are no numbers here."""


def is_empty(cell: Any) -> bool:
    """Nothing, null, NaN, or a text of nothing but spaces."""
    return (
        cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell))
    )


def plain_text(cell: Any, column: str, kind: str) -> str:
    """The cell as a text; numbers and truth values are written as JSON writes them, 2.0 as 2."""
    if isinstance(cell, str):
        return text_of({column: cell}, column).strip()
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, (list, dict, np.ndarray)):
        raise BadRowError(kind, f"column {column!r} holds a {_kind_of(cell)}, not one value")
    return str(cell)


class ModalityColumn(ABC):
    """The columns of one modality: what is kept of their cells, and the content it becomes when it is asked for."""

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.name, self.columns = name, tuple(columns)

    @abstractmethod
    def keep(self, cells: Sequence[Any]) -> Any:
        """What to keep of the cells; None if the modality is missing."""

    @abstractmethod
    def content(self, kept: Any) -> Content:
        """What a model or an encoder is given."""

    @abstractmethod
    def settle(self, kept: Sequence[Any]) -> Modality:
        """What the modality is, once every row was seen."""

    def wrong(self, kept: Any) -> str | None:
        """What is wrong with a cell now that the others are known."""
        return None


class FileColumn(ModalityColumn):
    """Paths of files, relative to the table's root. A file must be there; it is not opened."""

    def __init__(self, name: str, columns: Sequence[str], files: Pictures) -> None:
        super().__init__(name, columns)
        self.files = files

    def keep(self, cells: Sequence[Any]) -> str | None:
        if is_empty(cells[0]):
            return None
        if not isinstance(cells[0], str):
            raise BadRowError(
                "wrong path",
                f"column {self.columns[0]!r} holds a {_kind_of(cells[0])}, not a {self.files.noun}'s path",
            )
        path, trouble = self.files.find(cells[0].strip())
        if trouble is not None:
            raise BadRowError(trouble.kind, f"column {self.columns[0]!r}: {trouble.message}")
        return path


class ImageColumn(FileColumn):
    """Pictures by their paths."""

    def content(self, kept: str) -> PictureFile:
        return PictureFile(self.files.root / kept, self.files.root)

    def settle(self, kept: Sequence[Any]) -> Modality:
        return IMAGE


class AudioColumn(FileColumn):
    """Sounds by their paths."""

    def content(self, kept: str) -> SoundFile:
        return SoundFile(self.files.root / kept, self.files.root)

    def settle(self, kept: Sequence[Any]) -> Modality:
        return AUDIO


class TextColumn(ModalityColumn):
    """Texts as they stand, but for spaces around them."""

    def keep(self, cells: Sequence[Any]) -> str | None:
        return None if is_empty(cells[0]) else plain_text(cells[0], self.columns[0], "wrong text")

    def content(self, kept: str) -> str:
        return kept

    def settle(self, kept: Sequence[Any]) -> Modality:
        return TEXT


class VectorColumn(ModalityColumn):
    """Numbers: a list, a list of lists (tokens), a text of numbers, or one number in each of several columns."""

    width = 0

    def keep(self, cells: Sequence[Any]) -> np.ndarray[Any, Any] | None:
        if len(cells) > 1:
            return self._joined(cells)
        numbers = read_numbers(cells[0], self.columns[0])
        return None if numbers is None else _finite(numbers, self.columns[0])

    def content(self, kept: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(kept.copy())  # a copy: what a caller does to an example stays with the caller

    def settle(self, kept: Sequence[Any]) -> Modality:
        """The width that most rows have; with as many of two widths, the larger."""
        counts = Counter(x.shape[-1] for x in kept if x is not None)
        self.width = max(counts, key=lambda width: (counts[width], width))
        return features(self.width)

    def wrong(self, kept: np.ndarray[Any, Any]) -> str | None:
        width = kept.shape[-1]
        if width == self.width:
            return None
        return f"column {self.columns[0]!r} holds {width} numbers, where most rows hold {self.width}"

    def _joined(self, cells: Sequence[Any]) -> np.ndarray[Any, Any] | None:
        try:  # the usual case, without a look at each cell
            numbers = _to_float32([float(cell) for cell in cells])
            if np.isfinite(numbers).all():
                return numbers
        except (ValueError, TypeError, OverflowError):
            pass
        parts = [read_numbers(cell, column) for cell, column in zip(cells, self.columns, strict=True)]
        if all(part is None for part in parts):
            return None
        for part, column in zip(parts, self.columns, strict=True):
            if part is None:
                raise BadRowError("not finite", f"column {column!r} is empty, others of {self.name!r} hold numbers")
            if part.shape != (1,):
                raise BadRowError("wrong numbers", f"column {column!r} holds {part.size} numbers, one is needed")
            _finite(part, column)
        return np.concatenate([part for part in parts if part is not None])


def read_numbers(cell: Any, column: str) -> np.ndarray[Any, Any] | None:
    """Numbers as a vector (W) or as tokens (N W); None where there are none."""
    if isinstance(cell, str):
        if cell.strip().lower() in NO_NUMBERS:
            return None
        cell = _parse_numbers(cell.strip(), column)
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, dict):
        raise BadRowError("wrong numbers", f"column {column!r} holds an object, not numbers")
    try:
        numbers = np.atleast_1d(_to_float32(cell))
    except (ValueError, TypeError, OverflowError) as error:
        ragged = "inhomogeneous" in str(error)
        trouble = "lists of different lengths" if ragged else f"something that is no number ({_short(cell)})"
        raise BadRowError("wrong width" if ragged else "wrong numbers", f"column {column!r} holds {trouble}") from error
    if numbers.ndim > 2:
        raise BadRowError(
            "wrong numbers", f"column {column!r} holds {numbers.ndim} levels of lists, at most 2 are read"
        )
    return numbers if numbers.size else None


def modality_named(column: str) -> str:
    """The name of a column's modality: the column's, without pattern marks and as a model can use it."""
    name = re.sub(r"[*?\[\]!]", "", column)
    name = (name if name == column else name.rstrip("_-. ")).replace(".", "_")
    if not name:
        raise DataError(f"{column!r} leaves no name for a modality; rename the columns so that they begin alike")
    taken = hasattr(torch.nn.ModuleDict, name) or hasattr(torch.nn.ParameterDict, name)
    return f"{name}_" if taken else name


def _parse_numbers(text: str, column: str) -> Any:
    """A JSON list, or numbers separated by commas, semicolons or spaces, in brackets or not, as numpy prints them."""
    if text.startswith("["):
        try:
            return parse_json(text, constants=True)
        except JsonError:
            if text.count("[") > 1:
                raise BadRowError(
                    "wrong numbers", f"column {column!r} holds a list that is no JSON ({_short(text)})"
                ) from None
            text = text.removeprefix("[").removesuffix("]")
    parts = re.split(r"[\s,;]+", text.strip())
    try:
        return [float(part) for part in parts if part]
    except ValueError as error:
        raise BadRowError(
            "wrong numbers", f"column {column!r} holds something that is no number ({_short(text)})"
        ) from error


def _to_float32(cell: Any) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is reported as such
        return np.asarray(cell, dtype=np.float32)


def _finite(numbers: np.ndarray[Any, Any], column: str) -> np.ndarray[Any, Any]:
    finite = np.isfinite(numbers)
    if finite.all():
        return numbers
    at = int(np.flatnonzero(~finite)[0])
    message = f"column {column!r} holds {numbers.ravel()[at]} at place {at + 1} of its {numbers.size} numbers"
    raise BadRowError("not finite", message)


def _kind_of(cell: Any) -> str:
    names = {dict: "object", list: "list", np.ndarray: "list", bool: "truth value", int: "number", float: "number"}
    return names.get(type(cell), type(cell).__name__)


def _short(cell: Any) -> str:
    text = cell if isinstance(cell, str) else str(cell)
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
