"""Arms compared over seeds: mean, spread, paired difference, called or not. Pure functions of records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from meq.experiments.study import Study
from meq.training.record import FINISHED, RunRecord

CALLED, NOT_CALLED, INCOMPLETE, REFERENCE = "called", "not called", "incomplete", "reference"
TOO_FEW, ONE_SEED, NOT_A_NUMBER = "too few seeds", "one seed", "not a number"
FEWEST = 3
"""Seeds: the spread of two differences says next to nothing, and two that happen to be close would always be called."""

Records = Mapping[tuple[str, int], RunRecord]
"""By arm and seed; runs that are not over are left out."""


@dataclass(frozen=True, kw_only=True)
class ArmLine:
    """What the seeds of one arm say, about one metric on one split."""

    arm: str
    parameters: int | None
    """None as long as there is no record."""
    runs: str
    """How many of the planned runs have a score, and what became of the others."""
    mean: float | None
    spread: float | None
    """The sample standard deviation over seeds; None for fewer than two."""
    difference: float | None
    """Mean over seeds of this arm minus the reference, paired by seed."""
    difference_spread: float | None
    """The sample standard deviation of those paired differences."""
    verdict: str


def compare(study: Study, records: Records, *, split: str, metric: str) -> list[ArmLine]:
    """One line per arm, in the study's order."""
    scores = {arm.name: _scores(records, arm.name, study.seeds, split, metric) for arm in study.arms}
    return [_line(study, records, arm.name, scores) for arm in study.arms]


def compare_groups(study: Study, records: Records, *, split: str, metric: str) -> list[ArmLine]:
    """The best arm of each group, by its mean on dev of what weights are selected by, as a line of its own."""
    scores = {arm.name: _scores(records, arm.name, study.seeds, split, metric) for arm in study.arms}
    lines = []
    for group, members in study.groups.items():
        on_dev = {arm: _mean(list(_selected(records, arm, study.seeds).values())) for arm in members}
        best = max(members, key=lambda arm: -math.inf if (x := on_dev[arm]) is None or math.isnan(x) else x)
        if on_dev[best] is not None:
            lines.append(replace(_line(study, records, best, scores), arm=f"{group} ({best})"))
    return lines


def verdict(differences: Sequence[float]) -> str:
    """Called when |mean| > 2 sample standard deviations of the paired differences; of two seeds nothing follows."""
    if not all(math.isfinite(value) for value in differences):
        return NOT_A_NUMBER
    if len(differences) < _fewest.get():
        return TOO_FEW if _fewest.get() == FEWEST else ONE_SEED
    return CALLED if abs(statistics.fmean(differences)) > 2 * statistics.stdev(differences) else NOT_CALLED


@contextmanager
def called_with(seeds: int) -> Iterator[None]:
    """Within: so many seeds are enough. For tables of an older form, in which two were, when they are verified."""
    token = _fewest.set(seeds)
    try:
        yield
    finally:
        _fewest.reset(token)


_fewest: ContextVar[int] = ContextVar("fewest seeds", default=FEWEST)


def scored_pairs(records: Iterable[RunRecord]) -> list[tuple[str, str]]:
    """All splits and metrics that there are scores of, the loss apart."""
    return sorted(
        {
            (split, name)
            for record in records
            for split, found in record.metrics.items()
            for name in found
            if name != "loss"
        }
    )


def _scores(records: Records, arm: str, seeds: Sequence[int], split: str, metric: str) -> dict[int, float]:
    found = {seed: records[arm, seed] for seed in seeds if (arm, seed) in records}
    return {
        seed: record.metrics[split][metric]
        for seed, record in found.items()
        if record.scored and metric in record.metrics.get(split, {})
    }


def _selected(records: Records, arm: str, seeds: Sequence[int]) -> dict[int, float]:
    found = {seed: records[arm, seed] for seed in seeds if (arm, seed) in records}
    return {
        seed: record.metrics["dev"][record.metric]
        for seed, record in found.items()
        if record.scored and record.metric in record.metrics.get("dev", {})
    }


def _line(study: Study, records: Records, arm: str, scores: Mapping[str, Mapping[int, float]]) -> ArmLine:
    mine, theirs = scores[arm], scores[study.reference]
    pairs = [mine[seed] - theirs[seed] for seed in study.seeds if seed in mine and seed in theirs]
    is_reference = arm == study.reference
    complete = len(pairs) == len(study.seeds)
    counts = {records[arm, seed].parameters for seed in study.seeds if (arm, seed) in records}
    return ArmLine(
        arm=arm,
        parameters=counts.pop() if len(counts) == 1 else None,
        runs=_runs(study, records, arm, len(mine)),
        mean=_mean(list(mine.values())),
        spread=_spread(list(mine.values())),
        difference=None if is_reference else _mean(pairs),
        difference_spread=None if is_reference else _spread(pairs),
        verdict=REFERENCE if is_reference else verdict(pairs) if complete else INCOMPLETE,
    )


def _runs(study: Study, records: Records, arm: str, scored: int) -> str:
    """ "2 of 3 (seed 2 failed)": never a mean over fewer runs than planned without saying so."""
    odd = []
    for seed in study.seeds:
        record = records.get((arm, seed))
        if record is None:
            odd.append(f"seed {seed} missing")
        elif record.status != FINISHED:
            odd.append(f"seed {seed} {record.status}")
    return f"{scored} of {len(study.seeds)}" + (f" ({', '.join(odd)})" if odd else "")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _spread(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(math.isfinite(value) for value in values) else math.nan
