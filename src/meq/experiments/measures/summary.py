"""Means and spreads over seeds, for the tables of measures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from meq.experiments.measures.contract import Found, Values
from meq.experiments.render import Cell
from meq.experiments.study import Study

SPREADS = "Mean and spread (sample standard deviation) over seeds."


def by_seed(study: Study, values: Values, arm: str) -> list[Found]:
    """What was found on the runs of an arm, in the order of the seeds."""
    return [values[arm, seed] for seed in study.seeds if (arm, seed) in values]


def arms_in(study: Study, values: Values) -> list[str]:
    return [arm.name for arm in study.arms if by_seed(study, values, arm.name)]


def over_seeds(found: Sequence[Found], *path: str | int) -> tuple[Cell, Cell]:
    """(mean, spread) over seeds of the number that lies at `path`; None for what is not there."""
    return mean_and_spread([_at(each, path) for each in found])


def mean_and_spread(values: Sequence[Any]) -> tuple[Cell, Cell]:
    """Of the values that are there."""
    numbers = [float(value) for value in values if value is not None]
    return (statistics.fmean(numbers) if numbers else None), spread(numbers)


def spread(numbers: Sequence[float]) -> float | None:
    """The sample standard deviation; None for fewer than two numbers, NaN if one of them is not finite."""
    if len(numbers) < 2:
        return None
    return statistics.stdev(numbers) if all(map(math.isfinite, numbers)) else math.nan


def names_in(study: Study, values: Values, key: str) -> list[str]:
    """All names that a mapping under `key` has on any run, in order of appearance."""
    found = [each.get(key, {}) for arm in arms_in(study, values) for each in by_seed(study, values, arm)]
    return list(dict.fromkeys(name for each in found for name in each))


def _at(found: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        if isinstance(found, Mapping) and step not in found:
            return None
        found = found[step]
    return found
