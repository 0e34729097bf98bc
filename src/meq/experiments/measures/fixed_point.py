"""Is what is read a fixed point? Radius, drift, residual and score at K, and far beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from meq.analysis import follow, spectral_radius
from meq.analysis.differential import some_samples
from meq.core.options import checked_options
from meq.core.solution import Stop
from meq.experiments.build import Prepared
from meq.experiments.measures.contract import Found, Measure, Trained, Values, check_split
from meq.experiments.measures.steps import reported_split
from meq.experiments.measures.summary import SPREADS, arms_in, by_seed, mean_and_spread
from meq.experiments.render import Cell, Column, Table
from meq.experiments.study import Study


@checked_options
@dataclass(frozen=True, kw_only=True)
class FixedPoint(Measure):
    """rho at z(K), drift |z(horizon) - z(K)| / |z(K)|, residual and score at K and at the horizon."""

    name: ClassVar[str] = "fixed-point"

    split: str | None = None
    horizon: int = 300
    radii: int = 16
    """Samples whose spectral radius is computed."""
    limit: int | None = None

    def check(self, study: Study, prepared: Prepared) -> None:
        check_split(prepared.data, self.split)

    def take(self, trained: Trained) -> Found | None:
        if (model := trained.iterated) is None:
            return None
        split = self.split or reported_split(trained)
        batches = list(trained.batches(split, limit=self.limit))
        walked = follow(model, batches, steps=[0], horizon=self.horizon, metric=trained.data.metric)
        at, end = walked.at(walked.read), walked.at(walked.horizon)
        radii = self._radii(trained, split)
        assert walked.metric is not None
        return {
            "split": split,
            "samples": walked.predictions.shape[1],
            "read": walked.read,
            "horizon": walked.horizon,
            "metric": trained.data.metric.name,
            "radius": radii,
            "drift": {name: float(x.nanmedian()) for name, x in walked.drift.items()},
            "residual": {
                name: [float(x[place].nanmedian()) for place in (at, end)] for name, x in walked.residuals.items()
            },
            "score": [float(walked.metric[place]) for place in (at, end)],
            "flips": int(walked.flips[at]),
            "diverged": walked.diverged,
        }

    def _radii(self, trained: Trained, split: str) -> list[float]:
        found: list[float] = []
        for batch in trained.batches(split, limit=self.radii):
            with torch.no_grad():
                solution = trained.model(batch.features, batch.masks).solution
            assert solution is not None
            finite = [row for row, stop in enumerate(solution.stop) if stop is not Stop.DIVERGED]
            if finite:
                found += spectral_radius(solution.operator, some_samples(solution, finite)).tolist()
        return found

    def tables(self, study: Study, values: Values) -> dict[str, Table]:
        if not values:
            return {}
        first = next(iter(values.values()))
        rows = [_row(arm, seed, found) for (arm, seed), found in values.items()]
        rows += [_mean_row(arm, by_seed(study, values, arm)) for arm in arms_in(study, values)]
        read, horizon, metric = first["read"], first["horizon"], first["metric"]
        columns = (
            Column(key="arm", title="arm"),
            Column(key="seed", title="seed"),
            Column(key="radius", title="radius, mean", digits=3),
            Column(key="radius_max", title="largest", digits=3),
            Column(key="drift", title="drift", digits=3),
            Column(key="residual_read", title=f"residual at {read}", digits=5),
            Column(key="residual_far", title=f"at {horizon}", digits=5),
            Column(key="score_read", title=f"{metric} at {read}"),
            Column(key="score_far", title=f"at {horizon}"),
            Column(key="flips", title="answers changed"),
            Column(key="samples", title="samples"),
        )
        notes = (
            f"Radius: spectral radius of the undamped map at z(K), {len(first['radius'])} samples of {first['split']}.",
            "Drift |z(far) - z(K)| / |z(K)| and residual |z - T(z)| / |z|: medians over samples, the larger modality.",
            SPREADS,
        )
        return {
            "fixed-point": Table(
                title=f"{study.name}: at the read depth, and far beyond it",
                columns=columns,
                rows=tuple(rows),
                notes=notes,
            )
        }


def _cells(found: Found) -> tuple[Cell, ...]:
    radii = found["radius"]
    residuals = list(found["residual"].values())
    return (
        sum(radii) / len(radii) if radii else None,
        max(radii, default=None),
        _largest(found["drift"].values()),
        _largest(pair[0] for pair in residuals),
        _largest(pair[1] for pair in residuals),
        *found["score"],
        found["flips"],
        found["samples"],
    )


def _largest(values: Iterable[float]) -> float:
    """Of those that are numbers: a modality that no sample has, or whose samples all diverged, has none."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _row(arm: str, seed: int, found: Found) -> tuple[Cell, ...]:
    return (arm, str(seed), *_cells(found))


def _mean_row(arm: str, found: list[Found]) -> tuple[Cell, ...]:
    columns = list(zip(*(_cells(each) for each in found), strict=True))
    means = [mean_and_spread(column)[0] for column in columns[:7]]
    return (arm, "mean", *means, None, None)
