"""Collapse, expansion and neglect: what is the matter with an equilibrium, judged from measurements."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from meq.analysis.tables import middle, number

GATE_CLOSED = 1e-3
COUPLING_GONE = 1e-2
IDENTITY_BAND = 1e-2
SAME_STATE = 1e-3
UNMOVED = 1e-3
"""A response below this share of the largest one counts as none."""
CREEPING = 0.995
EDGE = 1e-3
"""A radius of 1 within this is the identity's, not an expansion's."""
SOLVED = 0.1
"""Linear solves that leave more than this have found nothing."""


class Verdict(enum.Enum):
    """What is the matter, if anything."""

    HEALTHY = "healthy"
    IDENTITY = "identity collapse"
    FIXED_POINT = "fixed-point collapse"
    EXPANSIVE = "expansive"
    IGNORED = "modality ignored"


def judge(facts: Mapping[str, Any]) -> tuple[Verdict, str]:
    """The verdict on a diagnosis' fields, and the numbers that led to it.

    The first that applies: what makes the numbers after it meaningless comes first.
    """
    judges = {
        Verdict.EXPANSIVE: _expansive,
        Verdict.IDENTITY: _identity,
        Verdict.FIXED_POINT: _fixed_point,
        Verdict.IGNORED: _ignored,
    }
    for verdict, applies in judges.items():
        evidence = applies(facts)
        if evidence is not None:
            return verdict, evidence
    return Verdict.HEALTHY, _why_healthy(facts)


def _why_healthy(facts: Mapping[str, Any]) -> str:
    least = min((middle(values) for values in facts["cross_self"].values()), default=math.nan)
    pace = middle(_pace(facts))
    words = f"spectral radius as iterated {number(pace)}, weakest cross/self ratio {number(least)}, every input counts"
    if pace > CREEPING:
        words += "; the slowest part of the states settles in no practical number of steps"
    elif middle(facts["radius"]) >= 1:
        words += f"; without damping it would not settle: the undamped radius is {number(middle(facts['radius']))}"
    return words


def _pace(facts: Mapping[str, Any]) -> Tensor:
    """The radius of what is iterated, or of the undamped map where a solver has no radius of its own."""
    damped = facts["damped_radius"]
    return facts["radius"] if bool(damped.isnan().all()) else damped


def _expansive(facts: Mapping[str, Any]) -> str | None:
    if facts["diverged"]:
        return f"{facts['diverged']} of {facts['samples']} samples stopped being finite"
    pace = middle(_pace(facts))
    if pace <= 1 + EDGE:
        return None
    return f"the iteration moves away from the state it was read at: spectral radius {number(pace)}, above 1"


def _identity(facts: Mapping[str, Any]) -> str | None:
    coupling = max((middle(values) for values in facts["cross_self"].values()), default=1.0)
    size = middle(facts["statistic"])
    gate = max((middle(values) for values in facts["gates"].values()), default=0.0)
    if gate > GATE_CLOSED or not coupling <= COUPLING_GONE or abs(size - 1) > IDENTITY_BAND:
        return None
    closed = f"the widest gate is open by {number(gate)}, " if facts["gates"] else ""
    return (
        f"the update returns its input: {closed}|J| is {number(size)}, and cross/self at most {number(coupling)}; the "
        "small residual is no achievement"
    )


def _fixed_point(facts: Mapping[str, Any]) -> str | None:
    responses = [middle(value) for row in facts["inputs"].values() for value in row.values()]
    strongest = max((value for value in responses if not math.isnan(value)), default=math.inf)
    if strongest < SAME_STATE and middle(facts["solve_residual"]) <= SOLVED:
        return f"no input moves any equilibrium by more than {number(strongest)} of its size"
    if facts["spread"] < SAME_STATE:
        return f"between samples the states differ by {number(facts['spread'])} of their size only"
    return None


def _ignored(facts: Mapping[str, Any]) -> str | None:
    """A modality that does not move the answer, or no state but its own."""
    answer = {name: middle(values) for name, values in facts["answer"].items()}
    strongest = max((value for value in answer.values() if not math.isnan(value)), default=0.0)
    for name, value in answer.items():
        if value < UNMOVED * strongest:
            return f"{name} moves the answer by {number(value)}, the strongest modality by {number(strongest)}"
    if middle(facts["solve_residual"]) > SOLVED:
        return None
    for name in facts["inputs"]:
        row = {a: middle(each[name]) for a, each in facts["inputs"].items() if name in each}
        others = [value for a, value in row.items() if a != name and not math.isnan(value)]
        if others and max(others) < UNMOVED * row.get(name, math.nan):
            return (
                f"{name} moves no state but its own: by {number(max(others))} at most, its own by {number(row[name])}"
            )
    return None
