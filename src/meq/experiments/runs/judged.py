"""The stored answers to a split, judged: right or wrong, how sure, and which of them are worth looking at."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.experiments.render import Cell, Column, Table
from meq.training.predictions import Predictions

WRONG, UNSURE, RIGHT = "most confidently wrong", "least sure", "most confidently right"
FARTHEST, NEAREST = "farthest off", "nearest"
REASONS = (WRONG, UNSURE, RIGHT, FARTHEST, NEAREST)
MOST_CLASSES = 12
"""A square table of more classes cannot be read: the most frequent mistakes are listed instead."""
MISTAKES = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """N answers of one split."""

    head: str
    ids: Sequence[str]
    answer: Int[Tensor, " N"]
    """The class; -1 where the logits are not finite, and throughout for numbers."""
    truth: Int[Tensor, " N"]
    """The class, or the best of several; -1 throughout for numbers."""
    right: Bool[Tensor, " N"]
    """With soft labels: the answer is worth something. False throughout for numbers."""
    confidence: Float[Tensor, " N"]
    """The probability of the answer; NaN where there is none."""
    off: Float[Tensor, " N"]
    """How far a number is from the true one; NaN for classes."""

    @property
    def lost(self) -> int:
        """Answers that are not finite."""
        return int((self.answer < 0).sum()) if self.head != "score" else int(self.off.isnan().sum())


@dataclass(frozen=True, kw_only=True)
class Notable:
    """An answer that is worth looking at."""

    row: int
    reason: str


def judge(predictions: Predictions, head: str) -> Judged:
    """What a split's stored logits say, beside its targets."""
    logits, target = predictions.logits.double(), predictions.target
    count = len(logits)
    none, nothing = torch.full((count,), -1), torch.full((count,), math.nan, dtype=torch.float64)
    wrong = torch.zeros(count, dtype=torch.bool)
    if head == "score":
        off = (logits[:, 0] - target.double().reshape(count)).abs()
        off = off.where(off.isfinite(), math.nan)
        return Judged(head=head, ids=predictions.ids, answer=none, truth=none, right=wrong, confidence=nothing, off=off)
    finite = logits.isfinite().all(1)
    answer = logits.argmax(1)
    chances = logits.sigmoid() if head == "labels" else logits.softmax(1)
    soft = target.ndim == 2
    right = target.gather(1, answer[:, None])[:, 0] > 0 if soft else answer == target
    return Judged(
        head=head,
        ids=predictions.ids,
        answer=answer.where(finite, -1),
        truth=target.argmax(1) if soft else target.long(),
        right=right & finite,
        confidence=chances.gather(1, answer[:, None])[:, 0].where(finite, math.nan),
        off=nothing,
    )


def notable(judged: Judged, count: int = 3) -> list[Notable]:
    """The worst and the best, `count` of each kind and each answer once; see `how_chosen`."""
    if judged.head == "score":
        known = [row for row in range(len(judged.ids)) if not math.isnan(float(judged.off[row]))]
        ranked = sorted(known, key=lambda row: float(judged.off[row]))
        best = ranked[:count]
        worst = [row for row in reversed(ranked) if row not in best][:count]
        return [*_named(worst, FARTHEST), *_named(best, NEAREST)]
    sure = {row: value for row, value in enumerate(judged.confidence.tolist()) if not math.isnan(value)}
    ranked = sorted(sure, key=lambda row: -sure[row])
    wrong = [row for row in ranked if not judged.right[row]][:count]
    right = _best_of_classes(judged, [row for row in ranked if judged.right[row]], count)
    unsure = [row for row in reversed(ranked) if row not in {*wrong, *right}][:count]
    return [*_named(wrong, WRONG), *_named(unsure, UNSURE), *_named(right, RIGHT)]


def how_chosen(head: str, split: str, count: int = 3) -> str:
    """The rule of `notable`, in words."""
    if head == "score":
        return (
            f"Chosen by the stored answers to {split}: the {count} numbers that are farthest from the true ones, and "
            f"the {count} that are nearest."
        )
    credit = " (an answer is wrong if it is worth nothing)" if head == "labels" else ""
    return (
        f"Chosen by the stored answers to {split}: the {count} wrong answers with the highest probability{credit}; the "
        f"{count} answers, of those that are left, with the lowest; and the {count} right answers with the highest "
        "probability, of each class the best one first. Nobody has picked them by hand."
    )


def confusion_table(judged: Judged, labels: Sequence[str], *, split: str) -> Table | None:
    """True class by answer, or for many classes the most frequent mistakes; None where there are no classes."""
    if judged.head not in ("classes", "ordinal"):
        return None
    pairs = Counter(zip(judged.truth.tolist(), judged.answer.tolist(), strict=True))
    if len(labels) > MOST_CLASSES:
        return _mistakes(pairs, labels, split)
    lost = [-1] if judged.lost else []
    columns = [Column(key="true", title="true class")]
    columns += [Column(key=f"answer {place}", title=_label(labels, place)) for place in [*range(len(labels)), *lost]]
    columns += [Column(key="recall", title="share found", digits=3)]
    rows: list[tuple[Cell, ...]] = []
    for true, label in enumerate(labels):
        counts = [pairs[true, answer] for answer in [*range(len(labels)), *lost]]
        total = sum(counts)
        rows.append((label, *counts, pairs[true, true] / total if total else None))
    title = f"True class (rows) and answer (columns) on {split}"
    return Table(title=title, columns=tuple(columns), rows=tuple(rows))


def _mistakes(pairs: Counter[tuple[int, int]], labels: Sequence[str], split: str) -> Table:
    wrong = sorted(((n, pair) for pair, n in pairs.items() if pair[0] != pair[1]), reverse=True)[:MISTAKES]
    rows = tuple((_label(labels, true), _label(labels, answer), n) for n, (true, answer) in wrong)
    names = {"true": "true class", "answer": "answer", "count": "how often"}
    columns = tuple(Column(key=key, title=title) for key, title in names.items())
    return Table(title=f"The most frequent mistakes on {split}, of {len(labels):,} classes", columns=columns, rows=rows)


def _best_of_classes(judged: Judged, ranked: Sequence[int], count: int) -> list[int]:
    """The first of each class, then the others in order: three examples of one class would say little."""
    firsts: dict[int, int] = {}
    for row in ranked:
        firsts.setdefault(int(judged.truth[row]), row)
    leading = list(firsts.values())
    return [*leading, *(row for row in ranked if row not in leading)][:count]


def _named(rows: Sequence[int], reason: str) -> list[Notable]:
    return [Notable(row=row, reason=reason) for row in rows]


def _label(labels: Sequence[str], place: int) -> str:
    return labels[place] if 0 <= place < len(labels) else "not finite"
