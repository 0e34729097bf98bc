"""The scores of a trained run, beside those that its record has, and which classes it takes for which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meq.analysis.tables import text_table
from meq.foreign import shown
from meq.training.record import Selected

CLASSES_SHOWN = 15
LABEL_SHOWN = 40
"""Characters of a label in a table."""
"""Larger tables of classes are not printed; they are in the JSON."""
CLOSE = 1e-6


@dataclass(frozen=True, kw_only=True)
class SplitScores:
    """One split."""

    split: str
    examples: int
    metrics: Mapping[str, float]
    """By name, and "loss", the mean loss of the task."""
    recorded: Mapping[str, float] | None
    """What the run's record says of this split, if it is the same data."""
    confusion: tuple[tuple[int, ...], ...] | None
    """Row: the label, column: the answer; None where answers are not classes."""

    @property
    def as_recorded(self) -> bool | None:
        """Whether the scores are those of the record; None where it has none."""
        if self.recorded is None:
            return None
        return all(_same(self.metrics.get(name, math.nan), value) for name, value in self.recorded.items())


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The kept weights on labelled data."""

    data: str
    same_data: bool
    """The very data of training, by its fingerprint."""
    metric: str
    labels: tuple[str, ...]
    selected: Selected | None
    """How the weights were chosen; None for a model without its record."""
    splits: tuple[SplitScores, ...]
    left_out: int
    """Rows that could not be read, where skipping them was asked for."""

    @property
    def selection(self) -> str:
        """In words, on which split the weights were chosen."""
        if self.selected is None:
            return "which split the weights were chosen on is not known: the run's record is not here"
        if self.selected.by == "last":
            return f"weights of the last epoch ({self.selected.epoch}), chosen on no split"
        split, epoch = self.selected.split, self.selected.epoch
        return f"weights of the best epoch on {split} ({epoch}): the score on {split} is the best of all epochs"

    @property
    def origin(self) -> str:
        """In words, whether this is the data of training."""
        if not self.same_data:
            return f"{self.data} is not the data that the run was trained on, or has changed since: fingerprints differ"
        compared = [each.as_recorded for each in self.splits if each.as_recorded is not None]
        if not all(compared):
            return "the data of training, and yet other scores than recorded: other versions, or another precision?"
        return "the data of training; the scores are those of its record" if compared else "the data of training"

    def __str__(self) -> str:
        names = list(self.splits[0].metrics) if self.splits else []
        rows = [
            [each.split, f"{each.examples:,}", *(f"{each.metrics[name]:.4f}" for name in names)] for each in self.splits
        ]
        parts = [text_table(["split", "examples", *names], rows), self.selection, self.origin]
        for each in self.splits:
            if each.confusion is not None and len(self.labels) <= CLASSES_SHOWN:
                parts += ["", confusion_text(each.split, self.labels, each.confusion)]
        return "\n".join(parts)


def confusion_text(split: str, labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> str:
    """Rows are labels, columns answers; the last column is the share of a label's examples that were recognised."""
    rows, labels = [], [shown(label, LABEL_SHOWN) for label in labels]
    for place, (label, counts) in enumerate(zip(labels, confusion, strict=True)):
        recall = f"{counts[place] / sum(counts):.3f}" if sum(counts) else "-"
        rows.append([label, *(str(count) for count in counts), recall])
    return text_table([f"{split}: label / answer", *labels, "recall"], rows)


def _same(ours: float, theirs: float) -> bool:
    return (math.isnan(ours) and math.isnan(theirs)) or math.isclose(ours, theirs, rel_tol=CLOSE, abs_tol=CLOSE)
