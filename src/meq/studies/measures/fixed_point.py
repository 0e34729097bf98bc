"""Is what is read a fixed point? Radius, drift, residual and score at K, and far beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from meq.analysis import follow, spectral_radius
from meq.analysis.products import some_samples
from meq.core.solution import Stop
from meq.options import checked_options
from meq.studies.measures.contract import (
    SPREADS,
    Measure,
    Results,
    TrainedModel,
    by_arm,
    mean_and_spread,
)
from meq.studies.study import Study
from meq.tables import Table

COUNTS = ("flips", "samples")
"""Columns that have no mean over seeds."""


@dataclass(frozen=True, kw_only=True)
class FixedPointResult:
    """Pairs are at the read depth, and at the horizon; medians over samples by modality."""

    split: str
    samples: int
    read: int
    horizon: int
    metric: str
    radius: tuple[float, ...]
    """Of some samples."""
    drift: Mapping[str, float]
    residual: Mapping[str, tuple[float, ...]]
    score: tuple[float, ...]
    flips: int
    """Answers that are others at the horizon."""
    diverged: int


@checked_options
@dataclass(frozen=True, kw_only=True)
class FixedPoint(Measure[FixedPointResult]):
    """rho at z(K), drift |z(horizon) - z(K)| / |z(K)|, residual and score at K and at the horizon."""

    name: ClassVar[str] = "fixed-point"
    result: ClassVar[type] = FixedPointResult

    split: str | None = None
    horizon: int = 300
    radii: int = 16
    """Samples whose spectral radius is computed."""
    limit: int | None = None

    def take(self, trained: TrainedModel) -> FixedPointResult | None:
        if (model := trained.iterated) is None:
            return None
        split = self.split or trained.reported_split
        batches = trained.batches(split, limit=self.limit)
        walked = follow(model, batches, steps=[0], horizon=self.horizon, metric=trained.data.metric)
        at, end = walked.at(walked.read), walked.at(walked.horizon)
        assert walked.metric is not None
        return FixedPointResult(
            split=split,
            samples=walked.predictions.shape[1],
            read=walked.read,
            horizon=walked.horizon,
            metric=trained.data.metric.name,
            radius=tuple(self._radii(trained, split)),
            drift={name: float(x.nanmedian()) for name, x in walked.drift.items()},
            residual={
                name: tuple(float(x[place].nanmedian()) for place in (at, end)) for name, x in walked.residuals.items()
            },
            score=tuple(float(walked.metric[place]) for place in (at, end)),
            flips=int(walked.flips[at]),
            diverged=walked.diverged,
        )

    def _radii(self, trained: TrainedModel, split: str) -> list[float]:
        found: list[float] = []
        for batch in trained.batches(split, limit=self.radii):
            with torch.no_grad():
                solution = trained.model(batch.features, batch.masks).solution
            assert solution is not None
            finite = [row for row, stop in enumerate(solution.stop) if stop is not Stop.DIVERGED]
            if finite:
                found += spectral_radius(solution.operator, some_samples(solution, finite)).tolist()
        return found

    def tables(self, study: Study, results: Results[FixedPointResult]) -> dict[str, Table]:
        if not results:
            return {}
        first = next(iter(results.values()))
        rows = [{"arm": arm, "seed": str(seed), **_cells(found)} for (arm, seed), found in results.items()]
        for arm, taken in by_arm(study, results).items():
            cells = [_cells(found) for found in taken]
            means = {key: mean_and_spread(each[key] for each in cells)[0] for key in cells[0] if key not in COUNTS}
            rows.append({"arm": arm, "seed": "mean", **means})
        table = Table.of(
            f"{study.name}: at the read depth, and far beyond it",
            rows,
            titles={
                "radius": "radius, mean",
                "radius_max": "largest",
                "residual_read": f"residual at {first.read}",
                "residual_far": f"at {first.horizon}",
                "score_read": f"{first.metric} at {first.read}",
                "score_far": f"at {first.horizon}",
                "flips": "answers changed",
            },
            digits={"radius": 3, "radius_max": 3, "drift": 3, "residual_read": 5, "residual_far": 5},
            notes=(
                f"Radius: spectral radius of the undamped map at z(K), {len(first.radius)} samples of {first.split}.",
                "Drift |z(far) - z(K)| / |z(K)| and residual |z - T(z)| / |z|: medians over samples, the larger "
                "modality.",
                SPREADS,
            ),
        )
        return {"fixed-point": table}


def _cells(found: FixedPointResult) -> dict[str, float | None]:
    return {
        "radius": sum(found.radius) / len(found.radius) if found.radius else None,
        "radius_max": max(found.radius, default=None),
        "drift": largest(found.drift.values()),
        "residual_read": largest(pair[0] for pair in found.residual.values()),
        "residual_far": largest(pair[1] for pair in found.residual.values()),
        "score_read": found.score[0],
        "score_far": found.score[1],
        "flips": found.flips,
        "samples": found.samples,
    }


def largest(values: Iterable[float]) -> float:
    """Of those that are numbers: a modality that no sample has, or whose samples all diverged, has none."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)
