"""Collapse, expansion and neglect: whether an equilibrium is healthy, judged from measurements."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from meq.analysis.answers import FEWEST, Answers
from meq.analysis.influence import SOLVED
from meq.analysis.jacobian import Blocks
from meq.analysis.tables import column, middle, number

GATE_CLOSED = 1e-3
COUPLING_GONE = 1e-2
IDENTITY_BAND = 1e-2
SAME_STATE = 1e-3
UNMOVED = 1e-3
"""A response below this share of the largest one counts as none."""
EDGE = 1e-3
"""A radius of 1 within this is the identity's, not an expansion's."""


class Verdict(enum.Enum):
    """What is wrong with an equilibrium, if anything."""

    HEALTHY = "healthy"
    IDENTITY = "identity collapse"
    FIXED_POINT = "fixed-point collapse"
    EXPANSIVE = "expansive"
    UNSETTLED = "does not settle"
    UNLEARNED = "nothing learned"
    IGNORED = "modality ignored"
    UNCOUPLED = "modalities not coupled"
    UNMEASURED = "no fault found, but not all was measured"


NONE = column([])
"""An empty column: no sample was measured."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurements:
    """What was measured of an equilibrium, on some samples at the state that was read; empty where all diverged."""

    samples: int
    """How many the output had; those measured are the first of them that did not diverge."""
    diverged: int
    tol: float
    spread: float
    """How much the states differ between the samples, relative to their size; NaN for a single one."""
    radius: Float[Tensor, " B"] = NONE
    radius_bounds: tuple[Float[Tensor, " B"], Float[Tensor, " B"]] = (NONE, NONE)
    """Lower and upper bound of the radius: far apart where the eigenvalue is badly conditioned."""
    damped_radius: Float[Tensor, " B"] = NONE
    """The spectral radius of the map as it is iterated; NaN for a solver that is not a damped iteration."""
    damped_bounds: tuple[Float[Tensor, " B"], Float[Tensor, " B"]] = (NONE, NONE)
    statistic: Float[Tensor, " B"] = NONE
    """|J|, the root mean square singular value: 1 for the identity. Not the radius."""
    residual: Float[Tensor, " B"] = NONE
    """The largest of the modalities' final residuals."""
    further_steps: Float[Tensor, " B"] = NONE
    """Steps from the read state to the tolerance at the damped radius' pace; inf where it is not below 1."""
    settling_steps: Float[Tensor, " B"] = NONE
    """Measured, by going on from the read state: steps from the start until at rest; inf where the bound was not
    enough."""
    influence: Blocks = field(default_factory=dict)
    """Who moves whom, through every path: sizes of the blocks of (I - J)^-1."""
    inputs: Blocks = field(default_factory=dict)
    """Relative: by what share a's equilibrium changes when b's input changes by its own size, in a random direction."""
    solve_residual: Float[Tensor, " B"] = NONE
    """What the linear solves behind the two tables left over; near 1 they say nothing."""
    cross_self: dict[str, Float[Tensor, " B"]] = field(default_factory=dict)
    gates: dict[str, Float[Tensor, " B"]] = field(default_factory=dict)
    answer: dict[str, Float[Tensor, " B"]] = field(default_factory=dict)
    """How far the logits move when a modality's input changes by its own size, through the steps that were taken;
    empty for a model without a head."""
    products: int = 0


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


def judge(measured: Measurements, findings: Mapping[str, Finding]) -> tuple[Verdict, str]:
    """The verdict on measurements, and the numbers that led to it.

    `findings` answer whether it settles, whether anything was learned, whether every modality counts for the answers,
    and whether the modalities are coupled. The first fault that applies: what makes the numbers after it meaningless
    comes first. Healthy is only what is known to have none.
    """
    identity = identity_in_words(
        gates=map(middle, measured.gates.values()),
        cross_self=map(middle, measured.cross_self.values()),
        statistic=middle(measured.statistic),
    )
    denied = {name: finding.words if finding.holds is False else None for name, finding in findings.items()}
    evidence = {
        Verdict.EXPANSIVE: _expansive(measured, findings["settles"]),
        Verdict.IDENTITY: identity,
        Verdict.FIXED_POINT: _fixed_point(measured),
        Verdict.UNSETTLED: denied["settles"],
        Verdict.UNLEARNED: denied["learned"],
        Verdict.IGNORED: denied["counts"],
        Verdict.UNCOUPLED: denied["coupled"],
    }
    for verdict, words in evidence.items():
        if words is not None:
            return verdict, words
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


def _expansive(measured: Measurements, settles: Finding) -> str | None:
    if measured.diverged:
        return f"{measured.diverged} of {measured.samples} samples stopped being finite"
    # the lower bound of the radius of what is iterated, or of the undamped map where a solver has none of its own
    damped, undamped = measured.damped_bounds[0], measured.radius_bounds[0]
    pace = middle(undamped if bool(damped.isnan().all()) else damped)
    if settles.holds or not pace > 1 + EDGE:
        return None
    return f"the iteration moves away from the state it was read at: spectral radius {number(pace)}, above 1"


def settles_finding(measured: Measurements, *, bound: int) -> Finding:
    steps = measured.settling_steps
    if len(steps) == 0:
        return Finding(None, "no sample stayed finite")
    words = settling_in_words(steps, measured.further_steps, tol=measured.tol, bound=bound)
    return Finding(bool(steps.isfinite().all()), words)


def settling_in_words(steps: Float[Tensor, " B"], predicted: Float[Tensor, " B"], *, tol: float, bound: int) -> str:
    """`settles within 34 steps`, or what is known where it does not."""
    finite = steps[steps.isfinite()]
    if len(finite) == len(steps):
        return f"to {tol:g} within {int(finite.max()):,} steps"
    words = f"{len(steps) - len(finite)} of {len(steps)} samples are not at rest (to {tol:g}) within {bound:,} steps"
    guessed = predicted[steps.isinf() & predicted.isfinite()]
    if len(guessed) and float(guessed.max()) > 0:
        further = float(guessed.max())
        count = f"{int(further):,}" if further < 1e6 else number(further)
        words += f"; at the pace of the radius it would take about {count} further steps"
    return words


NO_LABELS = "labelled samples were not given (diagnose(model, out, data=batches), or meq diagnose)"


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


def counts_finding(measured: Measurements, answers: Answers | None) -> Finding:
    """Measured by shuffling each modality. Without labels, only one that does not move the logits at all is found."""
    moved = {name: middle(values) for name, values in measured.answer.items()}
    strongest = max((value for value in moved.values() if not math.isnan(value)), default=0.0)
    for name, value in moved.items():
        if value < UNMOVED * strongest:
            words = f"{name} moves the answer by {number(value)}, the strongest modality by {number(strongest)}"
            return Finding(False, words)
    if answers is None:
        return Finding(None, NO_LABELS)
    words = "; ".join(
        f"shuffling {name} costs {loss} and changes {100 * answers.changed[name]:.0f} % of the answers"
        for name, loss in answers.losses.items()
    )
    if not answers.enough:
        return Finding(None, f"{words}; {FEWEST} samples are the fewest that can tell")
    ignored = [name for name in answers.losses if name not in answers.absent and not answers.counts(name)]
    if answers.absent and not ignored:
        return Finding(None, f"{words}; no labelled sample has {' or '.join(answers.absent)}")
    verb = "does" if len(ignored) == 1 else "do"
    return Finding(not ignored, f"{' and '.join(ignored)} {verb} not count: {words}" if ignored else words)


def coupled_finding(measured: Measurements) -> Finding:
    ratios = {name: middle(values) for name, values in measured.cross_self.items()}
    known = [value for value in ratios.values() if not math.isnan(value)]
    if not measured.cross_self:
        finite = len(measured.radius) > 0
        return Finding(True, "there is one joint state") if finite else Finding(None, "no sample stayed finite")
    if not known:
        return Finding(None, "no measured sample has two modalities")
    if max(known) <= UNMOVED:
        return Finding(False, f"no update listens to another modality: cross/self at most {number(max(known))}")
    # a modality that moves no state but its own; where the linear solves failed the table says nothing
    for name in measured.inputs if middle(measured.solve_residual) <= SOLVED else ():
        row = {a: middle(each[name]) for a, each in measured.inputs.items() if name in each}
        others = [value for a, value in row.items() if a != name and not math.isnan(value)]
        if others and max(others) < UNMOVED * row.get(name, math.nan):
            words = f"by {number(max(others))} at most, its own by {number(row[name])}"
            return Finding(False, f"{name} moves no state but its own: {words}")
    return Finding(True, f"cross/self between {number(min(known))} and {number(max(known))}")


def _fixed_point(measured: Measurements) -> str | None:
    responses = [middle(value) for row in measured.inputs.values() for value in row.values()]
    strongest = max((value for value in responses if not math.isnan(value)), default=math.inf)
    if strongest < SAME_STATE and middle(measured.solve_residual) <= SOLVED:
        return f"no input moves any equilibrium by more than {number(strongest)} of its size"
    if is_one_state(measured.spread):
        return f"between samples the states differ by {number(measured.spread)} of their size only"
    return None
