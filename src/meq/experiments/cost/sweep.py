"""What one more step of the iteration costs, and how many it takes to settle."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from meq.core.options import checked_options
from meq.core.solution import Stop
from meq.experiments.cost.passes import Cost, Encode, Feed, evaluating, measure_costs
from meq.models.iterated import Iterated

STEPS = (1, 2, 5, 10, 20)
CAP = 100
"""Where a run to tolerance is given up."""
WARMUPS = 5
"""And not more than there are timed passes."""
TOLERANCE = 1e-3
"""Of a run to tolerance, where the model has none of its own."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """value(K) = base + per_step K, by least squares."""

    per_step: float
    base: float
    """At K = 0."""
    deviation: float
    """How far an increment between two neighbouring K lies from `per_step`, at most."""


@dataclass(frozen=True, kw_only=True)
class ToTolerance:
    """The tolerance in charge, and a cap."""

    tolerance: float
    cap: int
    samples: int
    mean_steps: float
    most_steps: int
    capped: float
    """The share of samples that had not settled at the cap."""
    diverged: float


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The cost over the number of steps."""

    points: tuple[Cost, ...]
    flops: Line
    ms: Line | None
    to_tolerance: ToTolerance | None
    """None on the meta device."""

    @property
    def memory_growth(self) -> float:
        """(most - least) / least of the working memory over K; K = 1 is left out.

        A single step starts from the injection itself, and so holds one state less than any later one.
        """
        held = [point.working_bytes for point in self.points if point.steps != 1]
        return (max(held) - min(held)) / min(held)


@checked_options
def sweep_steps(
    model: Iterated,
    features: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None = None,
    *,
    steps: Sequence[int] = STEPS,
    passes: int = 30,
    encoders: Mapping[str, Encode] | None = None,
    raw: Mapping[str, Any] | None = None,
) -> Sweep:
    """The cost at each number of steps, all of them taken, and how many it takes to settle."""
    if len(set(steps)) < 2 or sorted(set(steps)) != list(steps):
        raise ValueError(f"a sweep needs two or more growing numbers of steps, got {list(steps)}")
    depths = {f"K={count}": at_depth(model, count) for count in steps}
    warmups = min(WARMUPS, passes)
    points = measure_costs(depths, features, masks, passes=passes, warmups=warmups, encoders=encoders, raw=raw).arms
    times = [point.ms for point in points if point.ms is not None]
    feed = Feed(features=features, masks=masks or {}, encoders=encoders or {}, raw=raw or {})
    return Sweep(
        points=points,
        flops=fit_line(steps, [point.flops for point in points]),
        ms=fit_line(steps, times) if times else None,
        to_tolerance=_to_tolerance(model, feed) if times else None,
    )


def at_depth(model: Iterated, steps: int, *, tol: float = 0.0) -> Iterated:
    """The same model, weights shared, read at another depth; without a tolerance it takes every step."""
    twin = copy.copy(model)
    twin.steps, twin.tol = steps, tol
    return twin


def fit_line(steps: Sequence[int], values: Sequence[float]) -> Line:
    """Least squares in fractions, so that what is constant comes out as constant to the last digit."""
    x, y = [Fraction(step) for step in steps], [Fraction(value) for value in values]
    mean_x, mean_y = sum(x, Fraction()) / len(x), sum(y, Fraction()) / len(y)
    spread = sum(((a - mean_x) ** 2 for a in x), Fraction())
    slope = sum(((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)), Fraction()) / spread
    increments = [(b2 - b1) / (a2 - a1) for (a1, b1), (a2, b2) in pairwise(zip(x, y, strict=True))]
    return Line(
        per_step=float(slope),
        base=float(mean_y - slope * mean_x),
        deviation=float(max(abs(increment - slope) for increment in increments)),
    )


def _to_tolerance(model: Iterated, feed: Feed) -> ToTolerance:
    tolerance = model.tol or TOLERANCE
    with torch.no_grad(), evaluating([model]):
        solution = feed(at_depth(model, CAP, tol=tolerance)).solution
    assert solution is not None
    stops = solution.stop
    return ToTolerance(
        tolerance=tolerance,
        cap=CAP,
        samples=len(stops),
        mean_steps=float(solution.steps.double().mean()),
        most_steps=int(solution.steps.max()),
        capped=sum(stop is Stop.BUDGET for stop in stops) / len(stops),
        diverged=sum(stop is Stop.DIVERGED for stop in stops) / len(stops),
    )
