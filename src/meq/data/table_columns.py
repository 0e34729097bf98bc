"""What the columns of a table mean. A cell that cannot be used is a `BadRowError`.

Paths of pictures or sounds, texts, numbers: a column, or several as one, becomes a modality, and an empty cell, null or
NaN is a missing modality. One class per kind, see COLUMN_KINDS. The label column asks for one class, any of several
labels, or a number: see TASKS.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from meq.data.content import PictureFile, SoundFile, Tree
from meq.data.contract import Modality, ModalityKind, features
from meq.data.files import BadRowError, text_of
from meq.data.findings import DataError
from meq.data.metrics import (
    ACCURACY,
    EXACT_MATCH,
    MICRO_F1,
    NEGATIVE_MAE,
    NEGATIVE_RMSE,
    OF_CLASSES,
    PEARSON,
    R2,
    Metric,
)
from meq.options import nearest
from meq.records import JsonError, parse_json

MODULE_NAMES = """
    T_destination _apply _call_impl _compiled_call_impl _get_backward_hooks _get_backward_pre_hooks _get_name
    _key_to_attr _load_from_state_dict _maybe_warn_non_full_backward_hook _named_members
    _register_load_state_dict_pre_hook _register_state_dict_hook _replicate_for_data_parallel
    _save_to_state_dict _slow_forward _version _wrapped_call_impl add_module apply bfloat16 buffers
    call_super_init children clear compile copy cpu cuda double dump_patches eval extra_repr float forward
    fromkeys get get_buffer get_extra_state get_parameter get_submodule half ipu items keys load_state_dict
    modules mtia named_buffers named_children named_modules named_parameters parameters pop popitem
    register_backward_hook register_buffer register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule setdefault share_memory state_dict
    to to_empty train type update values xpu zero_grad
"""
"""What `torch.nn.ModuleDict` and `ParameterDict` call their own parts: no modality can have such a name. Written out,
since importing torch to look takes seconds; a test compares."""
MANY_CLASSES = 10
"""With more classes than this, and than half of the rows, a column of classes is taken for a mistake."""
MOST_WHOLE = 20
"""Of more different whole numbers than this nobody can tell whether they are classes or amounts."""
NAMED = 5
"""Labels that a sentence names."""
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

    kind: ClassVar[ModalityKind]
    """What the modality is to encoders and models."""
    takes_patterns: ClassVar[bool] = False
    """Whether a pattern such as `audio_*` joins several columns to one modality."""

    def __init__(self, name: str, columns: Sequence[str], *, root: Path, width: int | None = None) -> None:
        """`root` is where paths start; `width`, where it is known already, how many numbers a token has."""
        self.name, self.columns, self.root, self.width = name, tuple(columns), root, width

    @abstractmethod
    def keep(self, cells: Sequence[Any]) -> Any:
        """What to keep of a row's cells; None if the modality is missing, BadRowError if they cannot be used."""

    @abstractmethod
    def content(self, kept: Any) -> Any:
        """What an encoder is given, or an array of numbers."""

    def settle(self, kept: Sequence[Any]) -> Modality:
        """What the modality is, once every row was seen."""
        return Modality(kind=self.kind)

    def wrong(self, kept: Any) -> str | None:
        """What is wrong with a row now that the others are known."""
        return None


class TextColumn(ModalityColumn):
    """Texts as they stand, but for spaces around them."""

    kind = "text"

    def keep(self, cells: Sequence[Any]) -> str | None:
        return None if is_empty(cells[0]) else plain_text(cells[0], self.columns[0], "wrong text")

    def content(self, kept: str) -> str:
        return kept


class FileColumn(ModalityColumn):
    """Paths of files, relative to the table's root. A file must be there; it is not opened."""

    noun: ClassVar[str]
    opened_by: ClassVar[type[PictureFile] | type[SoundFile]]

    @cached_property
    def files(self) -> Tree:
        return Tree(self.root, noun=self.noun)

    def keep(self, cells: Sequence[Any]) -> str | None:
        if is_empty(cells[0]):
            return None
        if not isinstance(cells[0], str):
            raise BadRowError(
                "wrong path", f"column {self.columns[0]!r} holds a {_kind_of(cells[0])}, not a {self.noun}'s path"
            )
        try:
            return self.files.find(cells[0].strip())
        except BadRowError as bad:
            advice = "; set root to a folder that holds it" if bad.kind == "path outside" else ""
            raise BadRowError(bad.kind, f"column {self.columns[0]!r}: {bad}{advice}") from None

    def content(self, kept: str) -> PictureFile | SoundFile:
        return self.opened_by(self.root / kept, self.root)


class ImageColumn(FileColumn):
    """Pictures by their paths."""

    kind, noun, opened_by = "image", "picture", PictureFile


class AudioColumn(FileColumn):
    """Sounds by their paths."""

    kind, noun, opened_by = "audio", "sound", SoundFile


class VectorColumn(ModalityColumn):
    """Numbers: a list, a list of lists (tokens), a text of numbers, or one number in each of several columns."""

    kind, takes_patterns = "features", True

    def __init__(self, name: str, columns: Sequence[str], *, root: Path, width: int | None = None) -> None:
        super().__init__(name, columns, root=root, width=width)
        self.expected = "where most rows hold" if width is None else "the model was trained on"

    def keep(self, cells: Sequence[Any]) -> np.ndarray[Any, Any] | None:
        if len(cells) > 1:
            return self._joined(cells)
        numbers = read_numbers(cells[0], self.columns[0])
        return None if numbers is None else _finite(numbers, self.columns[0])

    def content(self, kept: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return kept.copy()  # a copy: what a caller does to an example stays with the caller

    def settle(self, kept: Sequence[Any]) -> Modality:
        """The width that is known, or that most rows have; with as many of two widths, the larger."""
        if self.width is None:
            counts = Counter(x.shape[-1] for x in kept)
            self.width = max(counts, key=lambda width: (counts[width], width))
        return features(self.width)

    def wrong(self, kept: np.ndarray[Any, Any]) -> str | None:
        width = kept.shape[-1]
        if width == self.width:
            return None
        return f"column {self.columns[0]!r} holds {width} numbers, {self.expected} {self.width}"

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


COLUMN_KINDS: Mapping[str, type[ModalityColumn]] = {
    "images": ImageColumn,
    "texts": TextColumn,
    "audios": AudioColumn,
    "vectors": VectorColumn,
}
"""By the option of `meq.data.table`, and the field of `DataRequest`, that names such columns."""


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
    taken = name in MODULE_NAMES.split() or (name.startswith("__") and name.endswith("__"))
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


# -- labels ------------------------------------------------------------------------------------------------------------


class Task(ABC):
    """How the cells of the label column become targets."""

    head: str
    """A kind of head (`meq.models.heads`)."""
    metric: Metric
    also: tuple[Metric, ...] = ()

    def __init__(self, column: str, labels: Sequence[str] | None) -> None:
        self.column = column
        self.given = labels is not None
        self.labels: tuple[str, ...] = tuple(labels or ())
        self.places = {name: place for place, name in enumerate(self.labels)}
        if labels is not None and (len(self.places) < 2 or len(self.places) < len(self.labels)):
            raise DataError(f"labels must be at least two different names, got {list(labels)}")

    @abstractmethod
    def keep(self, cell: Any) -> Any:
        """What to keep of a cell; BadRowError if it is no label."""

    @abstractmethod
    def target(self, kept: Any) -> Any:
        """What the head is trained towards, as a number or an array."""

    def settle(self, kept: Sequence[Any]) -> None:
        """Fix the labels, once those of all rows were seen."""
        names = self._count(kept)
        if self.given:
            return
        if len(names) < 2:
            source = f"the label column {self.column!r}"
            raise DataError(f"{source} holds a single label, {_listed(names)}; there is nothing to tell apart")
        # numbers by value if all are numbers, else by the alphabet: so false comes before true, and no before yes
        numbers = all(map(_is_number, names))
        self.labels = tuple(sorted(names, key=lambda name: (float(name), name) if numbers else (0.0, name)))
        self.places = {name: place for place, name in enumerate(self.labels)}

    def counts(self, kept: Sequence[Any]) -> dict[str, Any]:
        """What a split's labels are, for the record."""
        names = self._count(kept)
        return {name: names[name] for name in self.labels}

    def unseen(self, kept: Mapping[str, Sequence[Any]]) -> list[str]:
        """Labels that occur, but never in train, in words."""
        counts = {split: self._count(rows) for split, rows in kept.items()}
        train = counts["train"]
        absent = [name for name in self.labels if not train[name] and any(count[name] for count in counts.values())]
        return [
            f"the label {name!r} never occurs in train ({_listed({s: n[name] for s, n in counts.items() if n[name]})})"
            for name in absent
        ]

    def unseen_in_a_line(self, kept: Mapping[str, Sequence[Any]]) -> str:
        """Labels that occur, but never in train, in one sentence."""
        counts = {split: self._count(rows) for split, rows in kept.items()}
        absent = [name for name in self.labels if not counts["train"][name] and any(n[name] for n in counts.values())]
        rows = {split: sum(count[name] for name in absent) for split, count in counts.items() if split != "train"}
        named = ", ".join(map(repr, absent[:NAMED])) + (f" and {len(absent) - NAMED:,} more" if absent[NAMED:] else "")
        many = f"{len(absent)} labels never occur" if len(absent) > 1 else "a label never occurs"
        lost = ", ".join(f"{split}: {count:,}" for split, count in rows.items() if count)
        return f"{many} in train, and cannot be learned: {named} (rows that have them, {lost})"

    def _count(self, kept: Sequence[Any]) -> Counter[str]:
        """How often each label occurs in what was kept of some rows."""
        return Counter()

    def _check_known(self, name: str) -> None:
        if self.given and name not in self.places:
            raise BadRowError("wrong label", f"{name!r} is none of the labels: {nearest(name, self.labels)}")


class Classes(Task):
    """One of several classes."""

    head, metric, also = "classes", ACCURACY, OF_CLASSES

    def keep(self, cell: Any) -> str:
        name = _label(cell, self.column)
        self._check_known(name)
        return name

    def target(self, kept: str) -> int:
        return self.places[kept]

    def settle(self, kept: Sequence[str]) -> None:
        names = Counter(kept)
        if not self.given and len(names) > max(MANY_CLASSES, len(kept) / 2):
            advice = "task='score'" if all(map(_is_number, names)) else "another column, or list the labels"
            raise DataError(
                f"the label column {self.column!r} holds {len(names)} different values in {len(kept)} rows, too many "
                f"for classes; do you mean {advice}?"
            )
        super().settle(kept)

    def _count(self, kept: Sequence[str]) -> Counter[str]:
        return Counter(kept)


class AnyLabels(Task):
    """Any number of labels: a list, or a text with a separator between them. An empty list is none of them."""

    head, metric, also = "labels", MICRO_F1, (EXACT_MATCH,)

    def __init__(self, column: str, labels: Sequence[str] | None, separator: str = "|") -> None:
        super().__init__(column, labels)
        self.separator = separator

    def keep(self, cell: Any) -> tuple[str, ...]:
        if isinstance(cell, np.ndarray):
            cell = cell.tolist()
        if not isinstance(cell, list):
            cell = [part for part in _label(cell, self.column).split(self.separator) if part.strip()]
        names = tuple(sorted({_label(part, self.column) for part in cell}))
        for name in names:
            self._check_known(name)
        return names

    def target(self, kept: tuple[str, ...]) -> np.ndarray[Any, Any]:
        target = np.zeros(len(self.labels), dtype=np.float32)
        target[[self.places[name] for name in kept]] = 1
        return target

    def _count(self, kept: Sequence[tuple[str, ...]]) -> Counter[str]:
        return Counter(name for names in kept for name in names)


class Score(Task):
    """A number. Its one output is named after the column."""

    head, metric, also = "score", R2, (PEARSON, NEGATIVE_MAE, NEGATIVE_RMSE)

    def __init__(self, column: str, labels: Sequence[str] | None) -> None:
        if labels is not None:
            raise DataError("a score is a number and has no labels; leave them out, or choose task='classes'")
        super().__init__(column, None)
        self.labels = (column,)

    def keep(self, cell: Any) -> float:
        text = _label(cell, self.column)
        if isinstance(cell, bool) or not _is_number(text):
            raise BadRowError(
                "wrong label", f"the label {text!r} in column {self.column!r} is no number, as a score must be"
            )
        number = float(text)
        if not math.isfinite(number) or abs(number) > float(np.finfo(np.float32).max):
            raise BadRowError("not finite", f"the label in column {self.column!r} is {text}")
        return number

    def target(self, kept: float) -> float:
        return kept

    def settle(self, kept: Sequence[float]) -> None:
        if len(set(kept)) < 2:
            raise DataError(f"the label column {self.column!r} holds {kept[0]} in every row; there is nothing to learn")

    def counts(self, kept: Sequence[float]) -> dict[str, Any]:
        numbers = np.asarray(kept)
        summary: dict[str, Callable[..., Any]] = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}
        return {name: float(function(numbers)) for name, function in summary.items()}


CLASSES = "classes"
TASKS: Mapping[str, type[Task]] = {CLASSES: Classes, "labels": AnyLabels, "score": Score}


def ask_about_numbers(column: str, names: Sequence[str]) -> str | None:
    """An error for labels that may as well be scores; a sentence for a few whole numbers, which become classes."""
    different = set(names)
    if len(different) <= 2 or not all(map(_is_number, different)):
        return None
    numbers = sorted(map(float, different))
    whole = all(number.is_integer() for number in numbers)
    if whole and len(numbers) <= MOST_WHOLE:
        return (
            f"the labels of {column!r} are {len(numbers)} whole numbers from {numbers[0]:g} to {numbers[-1]:g}, and "
            "are taken for classes; for amounts, whose order counts, give task='score' (--task score)"
        )
    look = (
        f"whole numbers, {len(numbers)} different ones"
        if whole
        else f"numbers with decimals, such as {_decimal(different)}"
    )
    raise DataError(
        f"the label column {column!r} holds {look}: say what they are with task='score' (--task score), numbers to "
        "come near to, or task='classes' (--task classes), names to choose from"
    )


def _decimal(names: Collection[str]) -> str:
    return min((name for name in names if not float(name).is_integer()), key=float)


def make_task(name: str, column: str, labels: Sequence[str] | None, separator: str) -> Task:
    if name not in TASKS:
        raise DataError(f"there is no task {name!r}: {nearest(name, TASKS)}")
    if name == "labels":
        if not separator:
            raise DataError("the separator between labels must not be empty")
        return AnyLabels(column, labels, separator)
    return TASKS[name](column, labels)


def _label(cell: Any, column: str) -> str:
    if is_empty(cell) or (isinstance(cell, str) and cell.strip().lower() == "nan"):
        raise BadRowError("missing label", f"there is no label in column {column!r}")
    return plain_text(cell, column, "wrong label")


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r}: {count}" for name, count in counts.items()) or "none"
