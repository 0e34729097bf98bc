"""Reading as deep as needed: what each stopping rule costs and saves, calibrated on dev and used on other splits."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from meq.models.anytime import Anytime
from meq.models.base import Output
from meq.models.iterated import IteratedModel
from meq.options import checked_options
from meq.records import SINCE
from meq.studies.build import PreparedData
from meq.studies.measures.contract import (
    BATCH,
    SPREADS,
    Measure,
    Results,
    SeedRow,
    TrainedModel,
    by_arm,
    check_split,
    mean_and_spread,
    spread_titles,
)
from meq.studies.study import Study
from meq.tables import Cell, Table
from meq.training.calibration import calibrate_stopping, full_depth
from meq.training.predictions import predict_split

FULL, OWN = "full depth", "own depth"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What reading a split in one way gives."""

    score: float
    steps: float
    """Mean over examples."""
    by_depth: Mapping[str, float] = field(default_factory=dict, metadata=SINCE)
    """The same for the examples of each depth, where examples have one."""


@dataclass(frozen=True, kw_only=True)
class StoppingResult:
    """By split and by rule; "own depth" is K, "full depth" the one that rules are measured against."""

    metric: str
    risk: float
    own: int
    full: int
    settings: Mapping[str, str]
    """By rule: its setting, in words; a rule without any that keeps the promise is left out."""
    holds: Mapping[str, bool]
    """By rule: the promise was also kept on the half of dev that did not choose the setting."""
    readings: Mapping[str, Mapping[str, Reading]]


@checked_options
@dataclass(frozen=True, kw_only=True)
class Stopping(Measure[StoppingResult]):
    """Every rule, its threshold calibrated on dev to a promise, against the full depth and against K."""

    name: ClassVar[str] = "stopping"
    result: ClassVar[type] = StoppingResult

    splits: Sequence[str] = ("test",)
    risk: float = 0.01
    most: int | None = None
    """The full depth; three times K, and at least 24, unless given."""

    def check(self, study: Study, prepared: PreparedData) -> None:
        for split in self.splits:
            check_split(prepared.data, split)

    def take(self, trained: TrainedModel) -> StoppingResult | None:
        model = trained.iterated
        if model is None:
            return None
        found = calibrate_stopping(model, trained.data, "dev", risk=self.risk, most=self.most)
        kept = {trial.rule: trial.anytime for trial in found.trials if trial.anytime is not None}
        depth = full_depth(model, self.most)
        readings = {}
        for split in self.splits:
            readings[split] = {
                OWN: _read(trained, model, split, model.steps),
                FULL: _read(trained, model, split, depth),
                **{rule: _read(trained, model, split, depth, anytime) for rule, anytime in kept.items()},
            }
        return StoppingResult(
            metric=trained.data.metric.name,
            risk=self.risk,
            own=model.steps,
            full=depth,
            settings={rule: str(anytime) for rule, anytime in kept.items()},
            holds={trial.rule: trial.holds for trial in found.trials if trial.rule in kept},
            readings=readings,
        )

    def tables(self, study: Study, results: Results[StoppingResult]) -> dict[str, Table]:
        splits = next(iter(results.values())).readings if results else {}
        made = {f"stopping-{split}": _table(study, results, split) for split in splits}
        deep = {split: _by_depth(study, results, split) for split, read in splits.items() if read[FULL].by_depth}
        return made | {f"steps-by-depth-{split}": table for split, table in deep.items()}


def _read(
    trained: TrainedModel, model: IteratedModel, split: str, steps: int, anytime: Anytime | None = None
) -> Reading:
    taken: list[float] = []

    def look(output: Output) -> None:
        assert output.solution is not None
        taken.extend(output.solution.steps.double().tolist())

    before = model.anytime
    try:
        with model.run_as(steps=steps):
            model.anytime = anytime
            found = predict_split(model, trained.data, split, batch_size=BATCH, look=look)
    finally:
        model.anytime = before
    depths = [each.facts.get("depth") for each in trained.data.splits[split]]
    by_depth = {
        str(depth): statistics.fmean(steps for steps, its in zip(taken, depths, strict=True) if its == depth)
        for depth in sorted({depth for depth in depths if isinstance(depth, int)})  # a user's facts may be anything
    }
    score = float(trained.data.metric(found.logits, found.target))
    return Reading(score=score, steps=statistics.fmean(taken), by_depth=by_depth)


def _table(study: Study, results: Results[StoppingResult], split: str) -> Table:
    rows = []
    for arm, found in by_arm(study, results).items():
        rules = dict.fromkeys(rule for each in found for rule in each.readings[split])
        for rule in rules:
            some = [each for each in found if rule in each.readings[split]]
            row = SeedRow(arm=arm, reading=rule, seeds=f"{len(some)} of {len(found)}")
            row.add("score", (each.readings[split][rule].score for each in some))
            row.add("steps", (each.readings[split][rule].steps for each in some))
            kept = sum(each.holds.get(rule, False) for each in some)
            row["promise kept"] = "" if rule in (OWN, FULL) else f"{kept} of {len(some)}"
            rows.append(row)
    first = next(iter(results.values()))
    return Table.of(
        f"{study.name}: reading {split} as deep as needed ({first.metric})",
        rows,
        titles=spread_titles(rows) | {"score": first.metric, "steps": "mean steps"},
        digits={"steps": 2, "steps spread": 2},
        notes=(
            f"Thresholds are calibrated on one half of dev so that in 95 % of resamples at most {first.risk:g} of "
            f"accuracy is lost against step {first.full}; promise kept: on the other half of dev, too. Seeds without "
            "such a threshold are not in a rule's line. Samples that settle by themselves stop in all lines.",
            SPREADS,
        ),
    )


def _by_depth(study: Study, results: Results[StoppingResult], split: str) -> Table:
    """A row per depth: the mean steps that each rule takes, of the reference."""
    found = by_arm(study, results).get(study.reference) or next(iter(by_arm(study, results).values()))
    rules = dict.fromkeys(rule for each in found for rule in each.readings[split] if rule not in (OWN, FULL))
    rows = []
    for depth in found[0].readings[split][FULL].by_depth:
        row: dict[str, Cell] = {"depth": depth}
        for rule in rules:
            some = [each.readings[split][rule] for each in found if rule in each.readings[split]]
            row[rule] = mean_and_spread(each.by_depth.get(depth) for each in some)[0]
        rows.append(row)
    return Table.of(
        f"{study.name}: steps taken on {split}, by depth",
        rows,
        digits=dict.fromkeys(rules, 1),
        notes=("Mean steps until an example is read, by the depth of its deepest answer; means over seeds.",),
    )
