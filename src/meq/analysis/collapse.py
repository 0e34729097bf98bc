"""Collapse, expansion and neglect: what is the matter with an equilibrium, judged from measurements."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from meq.analysis.answers import FEWEST, Answers
from meq.analysis.settling import settling_in_words
from meq.analysis.tables import middle, number

GATE_CLOSED = 1e-3
COUPLING_GONE = 1e-2
IDENTITY_BAND = 1e-2
SAME_STATE = 1e-3
UNMOVED = 1e-3
"""A response below this share of the largest one counts as none."""
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
    UNSETTLED = "does not settle"
    UNLEARNED = "nothing learned"
    IGNORED = "modality ignored"
    UNCOUPLED = "modalities not coupled"
    UNMEASURED = "no fault found, but not all was measured"


@dataclass(frozen=True)
class Finding:
    """The answer to one question: yes, no, or None for what was not measured; and the numbers behind it, in words."""

    holds: bool | None
    words: str

    @property
    def answer(self) -> str:
        return "not measured" if self.holds is None else "yes" if self.holds else "no"

    def __str__(self) -> str:
        return f"{self.answer}: {self.words}"


def judge(facts: Mapping[str, Any], findings: Mapping[str, Finding]) -> tuple[Verdict, str]:
    """The verdict on a diagnosis' measurements, and the numbers that led to it.

    `findings` answer whether it settles, whether anything was learned, whether every modality counts for the answers,
    and whether the modalities are coupled. The first fault that applies: what makes the numbers after it meaningless
    comes first. Healthy is only what is known to have none.
    """
    judges = {
        Verdict.EXPANSIVE: lambda: _expansive(facts, findings["settles"]),
        Verdict.IDENTITY: lambda: identity_in_words(**_signs(facts)),
        Verdict.FIXED_POINT: lambda: _fixed_point(facts),
        Verdict.UNSETTLED: lambda: _denied(findings["settles"]),
        Verdict.UNLEARNED: lambda: _denied(findings["learned"]),
        Verdict.IGNORED: lambda: _denied(findings["counts"]),
        Verdict.UNCOUPLED: lambda: _denied(findings["coupled"]),
    }
    for verdict, applies in judges.items():
        evidence = applies()
        if evidence is not None:
            return verdict, evidence
    open_questions = [name for name, finding in findings.items() if finding.holds is None]
    if open_questions:
        return Verdict.UNMEASURED, f"not measured: {', '.join(QUESTIONS[name] for name in open_questions)}"
    return Verdict.HEALTHY, "it settles, has learned, every modality counts for the answers, and they are coupled"


QUESTIONS = {
    "settles": "does it settle",
    "learned": "has it learned anything",
    "counts": "does each modality count for the answers",
    "coupled": "are the modalities coupled",
}


def identity_in_words(*, gates: Iterable[float], cross_self: Iterable[float], statistic: float) -> str | None:
    """Why the update is the identity, F(z) = z; None if it is not. The one judgement of diagnosis and alarms.

    No coupling, |J| at 1, and no gate that is open: a model without gates has none to speak against it. One joint
    state, which has nothing to couple, is judged by its gate.
    """
    known_gates = [value for value in gates if not math.isnan(value)]
    known_ratios = [value for value in cross_self if not math.isnan(value)]
    gate, coupling = max(known_gates, default=0.0), max(known_ratios, default=0.0)
    if not (known_gates or known_ratios) or not abs(statistic - 1) <= IDENTITY_BAND:
        return None
    if gate > GATE_CLOSED or coupling > COUPLING_GONE:
        return None
    closed = f"the widest gate is open by {number(gate)}, " if known_gates else ""
    return (
        f"the update returns its input: {closed}|J| is {number(statistic)}, and cross/self at most {number(coupling)}; "
        "the small residual is no achievement"
    )


def is_one_state(spread: float) -> bool:
    """Do all inputs end in the same state? The one judgement of diagnosis and alarms; False for a single sample."""
    return spread < SAME_STATE


def _signs(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gates": [middle(values) for values in facts["gates"].values()],
        "cross_self": [middle(values) for values in facts["cross_self"].values()],
        "statistic": middle(facts["statistic"]),
    }


def _denied(finding: Finding) -> str | None:
    return finding.words if finding.holds is False else None


def _pace(facts: Mapping[str, Any], *, bound: int) -> Tensor:
    """A bound of the radius of what is iterated, or of the undamped map where a solver has no radius of its own."""
    damped = facts["damped_bounds"][bound]
    return facts["radius_bounds"][bound] if bool(damped.isnan().all()) else damped


def _expansive(facts: Mapping[str, Any], settles: Finding) -> str | None:
    if facts["diverged"]:
        return f"{facts['diverged']} of {facts['samples']} samples stopped being finite"
    pace = middle(_pace(facts, bound=0))
    if settles.holds or not pace > 1 + EDGE:
        return None
    return f"the iteration moves away from the state it was read at: spectral radius {number(pace)}, above 1"


def settles_finding(facts: Mapping[str, Any], *, tol: float, bound: int) -> Finding:
    steps = facts["settling_steps"]
    if len(steps) == 0:
        return Finding(None, "no sample stayed finite")
    words = settling_in_words(steps, facts["further_steps"], tol=tol, bound=bound)
    return Finding(bool(steps.isfinite().all()), words)


NO_LABELS = "labelled samples were not given (diagnose(model, out, data=batches), or meq analyze)"


def learned_finding(answers: Answers | None) -> Finding:
    if answers is None:
        return Finding(None, NO_LABELS)
    rivals = f"always the same answer {number(answers.constant)}"
    if not math.isnan(answers.chance):
        rivals += f", chance {number(answers.chance)}"
    words = (
        f"{answers.score_name} {number(answers.score)} on {answers.samples} samples, {rivals}: ahead by {answers.gain}"
    )
    if answers.lost:
        words += f"; {answers.lost} answers are not finite"
    if not answers.enough:
        return Finding(None, f"{words}; {FEWEST} samples are the fewest that can tell")
    return Finding(answers.learned, words)


def counts_finding(facts: Mapping[str, Any], answers: Answers | None) -> Finding:
    """By shuffling; without labels only a modality that does not move the logits at all is found out."""
    unmoved = _unmoved(facts)
    if unmoved is not None:
        return Finding(False, unmoved)
    if answers is None:
        return Finding(None, NO_LABELS)
    parts = [
        f"shuffling {name} costs {loss} and changes {100 * answers.changed[name]:.0f} % of the answers"
        for name, loss in answers.losses.items()
    ]
    words = "; ".join(parts)
    if not answers.enough:
        return Finding(None, f"{words}; {FEWEST} samples are the fewest that can tell")
    ignored = [name for name in answers.losses if name not in answers.absent and not answers.counts(name)]
    if answers.absent and not ignored:
        return Finding(None, f"{words}; no labelled sample has {' or '.join(answers.absent)}")
    return Finding(not ignored, f"{' and '.join(ignored)} does not count: {words}" if ignored else words)


def coupled_finding(facts: Mapping[str, Any]) -> Finding:
    ratios = {name: middle(values) for name, values in facts["cross_self"].items()}
    known = [value for value in ratios.values() if not math.isnan(value)]
    if not facts["cross_self"]:
        finite = len(facts["radius"]) > 0
        return Finding(True, "there is one joint state") if finite else Finding(None, "no sample stayed finite")
    if not known:
        return Finding(None, "no measured sample has two modalities")
    if max(known) <= UNMOVED:
        return Finding(False, f"no update listens to another modality: cross/self at most {number(max(known))}")
    alone = _alone(facts)
    if alone is not None:
        return Finding(False, alone)
    return Finding(True, f"cross/self between {number(min(known))} and {number(max(known))}")


def _fixed_point(facts: Mapping[str, Any]) -> str | None:
    responses = [middle(value) for row in facts["inputs"].values() for value in row.values()]
    strongest = max((value for value in responses if not math.isnan(value)), default=math.inf)
    if strongest < SAME_STATE and middle(facts["solve_residual"]) <= SOLVED:
        return f"no input moves any equilibrium by more than {number(strongest)} of its size"
    if is_one_state(facts["spread"]):
        return f"between samples the states differ by {number(facts['spread'])} of their size only"
    return None


def _unmoved(facts: Mapping[str, Any]) -> str | None:
    """A modality that does not move the answer, where its neighbours do."""
    answer = {name: middle(values) for name, values in facts["answer"].items()}
    strongest = max((value for value in answer.values() if not math.isnan(value)), default=0.0)
    for name, value in answer.items():
        if value < UNMOVED * strongest:
            return f"{name} moves the answer by {number(value)}, the strongest modality by {number(strongest)}"
    return None


def _alone(facts: Mapping[str, Any]) -> str | None:
    """A modality that moves no state but its own."""
    if not middle(facts["solve_residual"]) <= SOLVED:
        return None
    for name in facts["inputs"]:
        row = {a: middle(each[name]) for a, each in facts["inputs"].items() if name in each}
        others = [value for a, value in row.items() if a != name and not math.isnan(value)]
        if others and max(others) < UNMOVED * row.get(name, math.nan):
            return (
                f"{name} moves no state but its own: by {number(max(others))} at most, its own by {number(row[name])}"
            )
    return None
