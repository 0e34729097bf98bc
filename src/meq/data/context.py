"""What a score is held against: how sure it is, what guessing gives, and what always the same answer gives."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meq.data.metrics import ACCURACY, AUROC, MACRO_AUROC, R2, TOKEN_ACCURACY, Metric, as_shown

if TYPE_CHECKING:
    from torch import Tensor

COVERAGE = 0.95
Z = 1.959963984540054
"""The quantile of the normal distribution that leaves out 2.5 % above it."""
RESAMPLES = 200
VALUES = 1_000_000
"""Samples that a bootstrap looks at in all: of large splits, whose intervals are narrow, fewer resamples are drawn."""
FEWEST = 50
WILSON = "Wilson"
TINY = 100
"""With fewer examples than this, a score on dev says little, and so does the choice of the epoch by it."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Where the score of many more such examples lies, with a confidence of 95 %."""

    low: float
    high: float
    method: str
    """Wilson, for shares of right answers; else a bootstrap over examples."""

    def shown_for(self, name: str) -> str:
        """The interval of what `as_shown` shows of this metric."""
        low, high = sorted(as_shown(name, each)[1] for each in (self.low, self.high))
        return f"[{low:.2f}, {high:.2f}]"


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the scores of one split are held against. None: that has no meaning for this metric."""

    examples: int
    chance: float | None
    """The metric of guessing, every answer as likely as any other."""
    majority: str | None
    """The most frequent label of the split, or "the mean" for numbers."""
    constant: float | None
    """The metric of always answering that."""
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """By metric."""

    @property
    def in_words(self) -> str:
        parts = []
        if self.constant is not None:
            parts.append(f"always {self.majority!r}: {self.constant:.4f}")
        if self.chance is not None:
            parts.append(f"chance: {self.chance:.4f}")
        return ", ".join(parts)


def context_of(
    metrics: Sequence[Metric], logits: Tensor, target: Tensor, *, head: str, labels: Sequence[str], seed: int = 0
) -> Context:
    """Intervals of all metrics; majority and chance by the first of them, which weights are selected by."""
    main = metrics[0]
    majority, constant = _constant(main, logits, target, head, labels)
    return Context(
        examples=len(target),
        chance=_chance(main, logits, head),
        majority=majority,
        constant=constant,
        intervals=intervals(metrics, logits, target, seed=seed),
    )


def wilson(share: float, count: int) -> Interval:
    """(p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n): right also for few trials, and near 0 and 1."""
    scale = 1 + Z**2 / count
    middle = (share + Z**2 / (2 * count)) / scale
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / scale
    return Interval(low=max(0.0, middle - half), high=min(1.0, middle + half), method=WILSON)


def intervals(metrics: Sequence[Metric], logits: Tensor, target: Tensor, *, seed: int = 0) -> dict[str, Interval]:
    """By metric; one whose score is not a number, or that most resamples cannot be scored by, has none."""
    found: dict[str, Interval] = {}
    others = []
    for metric in metrics:
        if metric.share and len(target):
            value = metric(logits, target)
            if math.isfinite(value):
                found[metric.name] = wilson(value, len(target))
        else:
            others.append(metric)
    drawn = _bootstrap(others, logits, target, seed) if others and len(target) > 1 else {}
    return {metric.name: each for metric in metrics if (each := {**found, **drawn}.get(metric.name)) is not None}


def _bootstrap(metrics: Sequence[Metric], logits: Tensor, target: Tensor, seed: int) -> dict[str, Interval]:
    """Percentiles over resamples of the examples, the same for every metric."""
    import torch

    from meq.data.resampling import scores_of_draws

    count = len(target)
    resamples = max(FEWEST, min(RESAMPLES, VALUES // count))
    generator = torch.Generator().manual_seed(random.Random(seed).getrandbits(62))
    rows = (torch.randint(count, (count,), generator=generator) for _ in range(resamples))
    counts = torch.stack([torch.bincount(taken, minlength=count) for taken in rows]).numpy().astype("int16")
    found = {}
    for metric in metrics:
        drawn = torch.from_numpy(scores_of_draws(metric, logits, target, counts))
        known = drawn[drawn.isfinite()]
        if len(known) * 2 > resamples:
            low, high = known.quantile(torch.tensor([(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], dtype=torch.float64))
            method = f"bootstrap, {resamples} resamples"
            found[metric.name] = Interval(low=low.item(), high=high.item(), method=method)
    return found


def _scored(metric: Metric, logits: Tensor, target: Tensor) -> float:
    try:
        return metric(logits, target)
    except ValueError:  # a resample of one class alone
        return math.nan


def _chance(metric: Metric, logits: Tensor, head: str) -> float | None:
    if metric.name in (AUROC.name, MACRO_AUROC.name):
        return 0.5
    shares = metric.share or metric.name in (ACCURACY.name, TOKEN_ACCURACY.name)
    return 1 / logits.shape[-1] if shares and head in ("classes", "ordinal", "choices", "tokens") else None


def _constant(
    metric: Metric, logits: Tensor, target: Tensor, head: str, labels: Sequence[str]
) -> tuple[str | None, float | None]:
    """The most frequent label, and what always answering it scores by this metric."""
    import torch

    if head == "score":
        return ("the mean", 0.0) if metric.name == R2.name else (None, None)
    asked = target[target >= 0] if head in ("classes", "ordinal", "tokens") else target[:0]
    if not len(asked):
        return None, None
    place = int(torch.bincount(asked.long(), minlength=len(labels)).argmax())
    always = torch.zeros_like(logits)
    always[..., place] = 1.0
    value = _scored(metric, always, target)
    return (labels[place], value) if math.isfinite(value) else (None, None)


def tiny_split(name: str, count: int) -> str | None:
    """What to know of a split of few examples, in a sentence; None where there are enough."""
    if count >= TINY:
        return None
    half = (wilson(0.5, count).high - wilson(0.5, count).low) / 2
    several = "" if count == 1 else "s"
    return (
        f"{name} has {count} example{several}: a share of right answers on it is known to about +-{half:.2f} (Wilson's "
        "interval of 95 % at one half), and epochs that differ by less cannot be told apart"
    )
