"""The answer read at every step, for all examples and by their kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from meq.analysis import follow
from meq.data.contract import Rows, Split
from meq.options import checked_options, nearest
from meq.records import SINCE
from meq.studies.build import PreparedData
from meq.studies.measures.contract import (
    SPREADS,
    Measure,
    Results,
    SeedRow,
    TrainedModel,
    by_arm,
    mean_and_spread,
    names_in,
    spread_titles,
)
from meq.studies.study import Study, StudyError
from meq.tables import Table

ALL = "all"
CLOSE = 0.01
"""How near a score must be to that at the read step for the answer to count as there."""


@dataclass(frozen=True, kw_only=True)
class StepsResult:
    """By group of examples, `all` among them. A model that does not iterate has an answer only."""

    split: str
    metric: str
    count: Mapping[str, int]
    answer: Mapping[str, float]
    """The score of the model's own answers."""
    read: int | None = field(default=None, metadata=SINCE)
    steps: tuple[int, ...] | None = field(default=None, metadata=SINCE)
    score: Mapping[str, tuple[float, ...]] = field(default_factory=dict, metadata=SINCE)
    """At each of the steps."""
    confidence: tuple[float, ...] | None = field(default=None, metadata=SINCE)
    residual: Mapping[str, tuple[float, ...]] = field(default_factory=dict, metadata=SINCE)
    """By modality, the median over samples."""
    diverged: int | None = field(default=None, metadata=SINCE)

    def there_at(self, group: str) -> int | None:
        """The first step from which on, up to K, the score stays near that at K; None for a model without steps."""
        if self.steps is None or self.read is None or group not in self.score:
            return None
        scores = dict(zip(self.steps, self.score[group], strict=True))
        far = [k for k in range(self.read) if abs(scores[k] - scores[self.read]) > CLOSE]
        return max(far, default=-1) + 1


@checked_options
@dataclass(frozen=True, kw_only=True)
class Steps(Measure[StepsResult]):
    """Score, confidence and residual at k = 0 .. horizon."""

    name: ClassVar[str] = "steps"
    result: ClassVar[type] = StepsResult

    split: str | None = None
    """The test split where it is labelled, else dev."""
    horizon: int | None = None
    """Twice the read depth unless given."""
    by: str | None = None
    """A fact of the examples, such as their kind, by which they are told apart."""
    limit: int | None = None

    def check(self, study: Study, prepared: PreparedData) -> None:
        super().check(study, prepared)
        some = next((split[0] for split in prepared.data.splits.values() if len(split)), None)
        if self.by is not None and some is not None and self.by not in some.facts:
            raise StudyError(
                f"the examples of {prepared.data.name} have no {self.by!r}: {nearest(self.by, some.facts)}"
            )

    def take(self, trained: TrainedModel) -> StepsResult:
        split = self.split or trained.reported_split
        groups = _groups(trained.data.splits[split][: self.limit], self.by)
        answered = StepsResult(
            split=split,
            metric=trained.data.metric.name,
            count={name: len(group) for name, group in groups.items()},
            answer={name: trained.score(group) for name, group in groups.items()},
        )
        if trained.iterated is None:
            return answered
        model, data, horizon = trained.iterated, trained.data, self.horizon or 2 * trained.iterated.steps
        walked = {}
        for name, group in groups.items():
            batches, steps = trained.collated(group), range(horizon + 1)
            walked[name] = follow(model, batches, steps=steps, horizon=horizon, metric=data.metric)
        every = walked[ALL]
        return replace(
            answered,
            read=every.read,
            steps=tuple(every.steps),
            score={name: _numbers(each.metric) for name, each in walked.items()},
            confidence=tuple(float(row.nanmean()) for row in every.confidence),
            residual={name: _numbers(rows.nanmedian(1).values) for name, rows in every.residuals.items()},
            diverged=every.diverged,
        )

    def tables(self, study: Study, results: Results[StepsResult]) -> dict[str, Table]:
        made = {"answers-by-kind": _answers(study, results)} if results else {}
        for arm, found in by_arm(study, results).items():
            if found[0].steps is not None:
                made[f"steps-{arm}"] = _along(study, arm, found)
        return made


def _groups(examples: Split, by: str | None) -> dict[str, Split]:
    """All examples, and those of each kind; none of them is made before it is read."""
    if by is None:
        return {ALL: examples}
    places: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        places.setdefault(str(example.facts[by]), []).append(place)
    return {ALL: examples, **{name: Rows(mine, examples.__getitem__) for name, mine in places.items()}}


def _numbers(values: torch.Tensor | None) -> tuple[float, ...]:
    return () if values is None else tuple(float(value) for value in values)


def _along(study: Study, arm: str, found: Sequence[StepsResult]) -> Table:
    first = found[0]
    rows = []
    for place, k in enumerate(first.steps or ()):
        row = SeedRow(k=f"{k} = K" if k == first.read else str(k))
        for name in first.score:
            row.add(name, (each.score[name][place] for each in found))
        for name in first.residual:
            row[f"residual {name}"] = mean_and_spread(each.residual[name][place] for each in found)[0]
        rows.append(row)
    residuals = {f"residual {name}": f"residual, {name}" for name in first.residual}
    return Table.of(
        f"{study.name}: {arm} read at step k ({first.metric} on {first.split})",
        rows,
        titles=spread_titles(rows) | residuals,
        digits=dict.fromkeys(residuals, 5),
        notes=(f"{SPREADS} Residual: |z - T(z)| / |z| of the undamped map, median over samples, mean over seeds.",),
    )


def _answers(study: Study, results: Results[StepsResult]) -> Table:
    arms = by_arm(study, results)
    groups = names_in(each.answer for found in arms.values() for each in found)
    rows = []
    for arm, found in arms.items():
        row = SeedRow(arm=arm)
        for name in groups:
            row.add(name, (each.answer.get(name) for each in found))
        row.update({f"{name} k": mean_and_spread(each.there_at(name) for each in found)[0] for name in groups})
        rows.append(row)
    there = {f"{name} k": f"{name}: there at k" for name in groups}
    first = next(iter(results.values()))
    close = f"There at k: the step from which on the score stays within {CLOSE:.2f} of that at K, mean over seeds."
    return Table.of(
        f"{study.name}: answers at the read depth ({first.metric} on {first.split})",
        rows,
        titles=spread_titles(rows) | there,
        digits=dict.fromkeys(there, 1),
        notes=(SPREADS, close),
    )
