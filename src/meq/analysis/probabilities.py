"""Are probabilities what they say? Temperature, calibration error, and sets that hold the true answer as often as told.

All of it works on logits and targets as they were kept: classes, soft labels, choices, classes per token, numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from meq.models.heads import probabilities

COLDEST, HOTTEST = 0.02, 50.0
"""Temperatures are looked for between these: answers that are all right would have none that is too cold."""
HALVINGS = 60
BINS = 15
SPREAD = 0.9
"""The share of calibration parts whose sets cover what `Promise` states as their range."""
HAVE_SETS = ("classes", "ordinal", "choices", "score")
"""Heads with one true answer per example, which a set holds or does not."""


def answered_rows(logits: Tensor, target: Tensor, head: str) -> tuple[Float[Tensor, "N C"], Tensor]:
    """Logits and targets that count, in double precision: tokens that are asked, and logits that are finite."""
    if head == "tokens":
        asked = target >= 0
        logits, target = logits[asked], target[asked]
    finite = torch.isfinite(logits).all(-1)
    return logits[finite].double(), target[finite]


# -- temperature -------------------------------------------------------------------------------------------------------


def fit_temperature(logits: Tensor, target: Tensor, head: str) -> float:
    """argmin_T of the mean -log p(target), p = softmax(logits / T); for soft labels sigmoid and cross entropy.

    The loss is convex in 1 / T: the root of its derivative is found by halving.
    """
    rows, wanted = answered_rows(logits, target, head)
    low, high = math.log(1 / HOTTEST), math.log(1 / COLDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(rows, wanted, head, math.exp(middle)) < 0 else (low, middle)
    return math.exp(-(low + high) / 2)


def _slope(logits: Float[Tensor, "N C"], target: Tensor, head: str, inverse: float) -> float:
    """The derivative of the loss by 1 / T."""
    chances = probabilities(logits * inverse, head)
    if head == "labels":
        return float(((chances - target.double()) * logits).mean())
    true = logits.gather(1, target.long()[:, None])[:, 0]
    return float(((chances * logits).sum(1) - true).mean())


def log_loss(logits: Tensor, target: Tensor, head: str, *, temperature: float = 1.0) -> float:
    """The mean of -log p(target)."""
    rows, wanted = answered_rows(logits, target, head)
    if head == "labels":
        return float(F.binary_cross_entropy_with_logits(rows / temperature, wanted.double()))
    return float(F.cross_entropy(rows / temperature, wanted.long()))


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How often answers of one confidence are right, in bins of equal width; empty bins are left out."""

    confidence: tuple[float, ...]
    """The mean of each bin."""
    right: tuple[float, ...]
    """The share of right answers in it."""
    counts: tuple[int, ...]

    @property
    def error(self) -> float:
        """ECE = sum over bins of n_b / n |share right - confidence|, the expected calibration error."""
        gaps = [abs(right - sure) for right, sure in zip(self.right, self.confidence, strict=True)]
        total = sum(self.counts)
        return sum(gap * n for gap, n in zip(gaps, self.counts, strict=True)) / total if total else math.nan


def reliability(
    logits: Tensor, target: Tensor, head: str, *, temperature: float = 1.0, bins: int = BINS
) -> Reliability:
    """Confidence beside the share of right answers. Of soft labels every label is a question with its probability."""
    rows, wanted = answered_rows(logits, target, head)
    chances = probabilities(rows / temperature, head)
    if head == "labels":
        sure, right = chances.flatten(), wanted.double().flatten()
    else:
        sure, right = chances.amax(1), (rows.argmax(1) == wanted.long()).double()
    place = (sure * bins).long().clamp(0, bins - 1)
    counts = place.bincount(minlength=bins)
    full = counts > 0
    means = [(place.bincount(x, minlength=bins)[full] / counts[full]).tolist() for x in (sure, right)]
    return Reliability(confidence=tuple(means[0]), right=tuple(means[1]), counts=tuple(counts[full].tolist()))


# -- sets that hold the true answer ------------------------------------------------------------------------------------


def conformity(logits: Tensor, target: Tensor, head: str) -> Float[Tensor, " N"]:
    """How far each answer is from the truth, ascending: 1 - p(true class), or the error of a number.

    Of the raw probabilities: a temperature that was fitted on the same rows would spoil the promise.
    """
    rows, wanted = answered_rows(logits, target, head)
    if head == "score":
        return (rows[:, 0] - wanted.double().reshape(len(rows))).abs().sort().values
    return 1 - probabilities(rows, head).gather(1, wanted.long()[:, None])[:, 0].sort(descending=True).values


def check_level(level: float) -> None:
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"`coverage` is a share between 0 and 1, such as 0.9; got {level!r}")


def rows_needed(level: float) -> int:
    """The fewest rows n with ceil((n + 1) level) <= n: with fewer, no finite threshold keeps the promise."""
    check_level(level)
    return math.ceil(level / (1 - level) - 1e-9)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a threshold promises: over rows drawn as those of calibration were, and over draws of those."""

    level: float
    rows: int
    threshold: float
    """What is no farther from the answer than this is in the set: the ceil((n + 1) level)-th smallest distance."""

    @property
    def range(self) -> tuple[float, float]:
        """Where the coverage of this very threshold lies in `SPREAD` of the draws, Beta(k, n + 1 - k)."""
        from scipy.special import betaincinv  # on use: importing meq stays light

        k = _rank(self.level, self.rows)
        low, high = (float(betaincinv(k, self.rows + 1 - k, (1 + side * SPREAD) / 2)) for side in (-1, 1))
        return low, high

    @property
    def words(self) -> str:
        low, high = self.range
        return (
            f"at least {self.level:.4g} of the sets hold the true answer, on average over rows like those of the "
            f"{self.rows:,} that calibrated it (and {low:.3f} to {high:.3f} of them in 9 of 10 such calibrations); not "
            "for each class or kind of row by itself, and not for rows of another kind"
        )


def promise(scores: Sequence[float], level: float) -> Promise:
    """The threshold for a level from ascending distances; an error where there are too few of them."""
    check_level(level)
    if len(scores) < rows_needed(level):
        raise ValueError(
            f"`coverage` {level:g} needs at least {rows_needed(level):,} rows of calibration, and there are "
            f"{len(scores):,}: ask for less, or calibrate with more rows"
        )
    return Promise(level=level, rows=len(scores), threshold=float(scores[_rank(level, len(scores)) - 1]))


def _rank(level: float, rows: int) -> int:
    return math.ceil((rows + 1) * level - 1e-9)  # 0.07 x 100 is 7, and not a little more


def classes_within(logits: Float[Tensor, "N C"], head: str, threshold: float) -> list[list[int]]:
    """The classes with 1 - p <= threshold, the most probable first; the answer is always among them."""
    distance = 1 - probabilities(logits.double(), head)
    order = distance.argsort(dim=1, stable=True)
    kept = (distance <= threshold).sum(1).clamp(min=1)
    return [row[:count].tolist() for row, count in zip(order, kept.tolist(), strict=True)]
