"""Where a new table differs from the data that a run was trained on, in sentences; none where it does not.

A difference is told if it is both large, see `LARGE`, and no accident: more than `ERRORS` standard errors of the
difference of two means, max(s1, s2) sqrt(1 / n1 + 1 / n2), with at least `LEAST` rows on either side. The larger of the
standard deviations stands for both: that of a few rows in which something rare happens not to occur is zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from meq.data.contract import Example, Split
from meq.training.profile import (
    ModalityProfile,
    Profile,
    Spread,
    columns_of,
    confidence_of,
    missing_of,
    numbers_of,
    outside_of,
    sides_of,
    spread_out,
    texts_of,
    unknown_of,
)

LEAST = 30
"""Rows on either side below which nothing is said."""
ERRORS = 5.0
"""Standard errors of a difference of means: by chance, hardly one comparison in a million."""
LARGE = {"missing": 0.1, "unknown words": 0.1, "picture size": 0.5, "outside the range": 0.05, "confidence": 0.1}
"""Differences below which nothing is said: of shares and of confidence, and of log2 of pixels (a factor of 1.4)."""
LARGE_SHIFT = 0.5
"""The same for the mean of a column of numbers, in standard deviations of training."""
NAMED = 3
"""Columns that are named one by one."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One way in which new data is unlike that of training."""

    what: str
    """One of those in `LARGE`, or "numbers"."""
    modality: str | None
    """None for what is said of answers."""
    here: float
    training: float
    words: str

    def __str__(self) -> str:
        return self.words


def differences(profile: Profile | None, split: Split, logits: Sequence[Tensor] = (), *, head: str) -> list[Difference]:
    """What is unlike the data of training: rows as they were read, and the model's logits of them where it answered."""
    if profile is None or len(split) < LEAST:
        return []
    examples = list(spread_out(split))
    found = [each for name, known in profile.modalities.items() for each in _modality(name, known, examples)]
    sure = None if profile.confidence is None else confidence_of(logits, head)
    if profile.confidence is not None and sure is not None and _differs(profile.confidence, sure, "confidence"):
        before, now = profile.confidence.mean, sure.mean
        words = f"the model is {'less' if now < before else 'more'} sure of its answers: {now:.2f} on average, " + (
            f"{before:.2f} when it was trained"
        )
        found.append(Difference(what="confidence", modality=None, here=now, training=before, words=words))
    return found


def _modality(name: str, known: ModalityProfile, examples: Sequence[Example]) -> Iterator[Difference]:
    texts = texts_of(examples, name) if known.words is not None else []
    unknown = None if known.words is None else unknown_of(texts, known.words)
    bounds = outside_of(examples, name, known.low, known.high) if known.low else None
    for what, before, now in (
        ("missing", known.missing, missing_of(examples, name)),
        ("unknown words", known.unknown, unknown),
        ("picture size", known.side, sides_of(examples, name) if known.side is not None else None),
        ("outside the range", known.outside, bounds),
    ):
        if before is not None and now is not None and _differs(before, now, what):
            words = f"{name}: {_told(what, before.mean, now.mean)}"
            yield Difference(what=what, modality=name, here=now.mean, training=before.mean, words=words)
    numbers = numbers_of(examples, name) if known.columns else None
    if numbers is not None and numbers.shape[1] == len(known.columns):
        yield from _shifts(name, known.columns, columns_of(numbers))


def _told(what: str, before: float, now: float) -> str:
    if what == "missing":
        return f"missing in {now:.0%} of the rows, in training in {before:.0%}"
    if what == "unknown words":
        return f"{now:.0%} of the words are not in the training data; of held-out rows of its table it was {before:.0%}"
    if what == "picture size":
        size = "larger" if now > before else "smaller"
        return f"pictures are {size}: {2**now:.0f} pixels of the shorter side, in training {2**before:.0f}"
    return f"{now:.0%} of the numbers lie outside of the range of training; of held-out rows it was {before:.0%}"


def _shifts(name: str, before: Sequence[Spread], now: Sequence[Spread]) -> Iterator[Difference]:
    """Columns whose mean has moved, the most moved ones first, in one sentence."""
    moved = [(abs(b.mean - a.mean) / (a.std or 1.0), at) for at, (a, b) in enumerate(zip(before, now, strict=True))]
    moved = sorted(
        (size, at)
        for size, at in moved
        if _beyond_chance(before[at], now[at]) and abs(now[at].mean - before[at].mean) > LARGE_SHIFT * before[at].std
    )[::-1]
    if moved:
        first = moved[0][1]
        shown = [f"number {at + 1} ({now[at].mean:.3g}, in training {before[at].mean:.3g})" for _, at in moved[:NAMED]]
        more = f", and {len(moved) - NAMED} more" if len(moved) > NAMED else ""
        words = f"{name}: other numbers on average: {', '.join(shown)}{more}"
        yield Difference(what="numbers", modality=name, here=now[first].mean, training=before[first].mean, words=words)


def _differs(before: Spread, now: Spread, what: str) -> bool:
    return abs(now.mean - before.mean) > LARGE[what] and _beyond_chance(before, now)


def _beyond_chance(before: Spread, now: Spread) -> bool:
    if min(before.count, now.count) < LEAST:
        return False
    error = max(before.std, now.std) * math.sqrt(1 / before.count + 1 / now.count)
    return abs(now.mean - before.mean) > ERRORS * error
