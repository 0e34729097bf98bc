"""What a label column asks for: one class, any of several labels, or a number."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meq.data.files import BadRowError
from meq.data.findings import DataError
from meq.data.metrics import ACCURACY, EXACT_MATCH, MICRO_F1, NEGATIVE_MAE, PEARSON, R2, Metric
from meq.data.table_columns import is_empty, plain_text
from meq.options import nearest

MANY_CLASSES = 10
"""With more classes than this, and than half of the rows, a column of classes is taken for a mistake."""


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

    def _count(self, kept: Sequence[Any]) -> Counter[str]:
        """How often each label occurs in what was kept of some rows."""
        return Counter()

    def _check_known(self, name: str) -> None:
        if self.given and name not in self.places:
            raise BadRowError("wrong label", f"{name!r} is none of the labels: {nearest(name, self.labels)}")


class Classes(Task):
    """One of several classes."""

    head, metric = "classes", ACCURACY

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

    head, metric, also = "score", R2, (PEARSON, NEGATIVE_MAE)

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


TASKS: Mapping[str, type[Task]] = {"classes": Classes, "labels": AnyLabels, "score": Score}


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
