"""diagnose(): one page on the health of a trained equilibrium, with a verdict and the numbers that led to it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.answers import Answers, measure_answers
from meq.analysis.influence import SOLVED, solve_probes, total_influence
from meq.analysis.jacobian import Blocks, block_statistics, cross_self_ratio, whole_statistic
from meq.analysis.products import find_sources, gradients, jacobians, precision, reachable_tolerance, some_samples
from meq.analysis.sensitivity import input_responses
from meq.analysis.spectrum import radius_in_words, spectrum_of
from meq.analysis.tables import column, number, spread, square_table, text_table
from meq.analysis.verdict import (
    QUESTIONS,
    Finding,
    Measurements,
    Verdict,
    counts_finding,
    coupled_finding,
    judge,
    learned_finding,
    settles_finding,
)
from meq.core.operator import RestartedOperator
from meq.core.solution import Solution, Stop
from meq.core.solve import solve
from meq.core.solvers import Damped
from meq.core.state import State, count_entries, norm
from meq.options import checked_options, nearest, whole_number
from meq.showing import Shown

EIGENPAIR = 1e-3
"""The residual asked of the leading eigenpair, relative to the eigenvalue."""
SETTLING_BOUND = 1000
"""Steps within which an iteration is to come to rest, counted from its start, to be called settling."""
USUAL_TOLERANCE = 1e-3
"""Asked of a model that was told to take every step (tol = 0), which says nothing of when it counts as settled."""


@runtime_checkable
class Diagnosable(Protocol):
    """What diagnose() needs to know of a model."""

    training: bool

    def read(self, state: State, masks: Mapping[str, Tensor]) -> Tensor: ...

    def gates(self, solution: Solution) -> dict[str, Tensor]: ...


@runtime_checkable
class ModelOutput(Protocol):
    """What diagnose() needs to know of a model's output."""

    @property
    def solution(self) -> Solution | None: ...

    @property
    def branches(self) -> dict[str, Solution]: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnosis(Measurements, Shown):
    """The state of an equilibrium: measurements, what they answer, and a verdict."""

    verdict: Verdict
    evidence: str
    """The numbers that led to the verdict, in words."""
    findings: dict[str, Finding]
    """By key of `meq.analysis.verdict.QUESTIONS`: does it settle, has it learned anything, does each modality count
    for the answers, are the modalities coupled. Healthy is only what has four times yes."""
    answers: Answers | None
    """What labelled samples showed; None where none were given."""

    @property
    def singular(self) -> bool:
        """Could I - J not be inverted for some sample? Then there is no table of influence."""
        return not bool((self.solve_residual <= SOLVED).all())

    def numbers(self) -> list[tuple[str, str, str]]:
        """What was measured: its name, the median and range over the samples, and what it means."""
        steps = "already there" if bool((self.further_steps == 0).all()) else spread(self.further_steps)
        rows = [
            ("spectral radius, undamped", radius_in_words(self.radius, *self.radius_bounds),
             "below 1: the map itself would settle nearby"),
            ("spectral radius, as iterated", radius_in_words(self.damped_radius, *self.damped_bounds),
             "below 1: what is iterated settles; the distance to 1 is its pace"),
            ("|J|, rms singular value", spread(self.statistic),
             "size of the Jacobian: 1 for a step that changes nothing; the penalty holds it in a range"),
            ("residual at the read state", spread(self.residual),
             "relative length of one more whole step; the largest modality"),
            (f"further steps to {self.tol:g}", steps, "predicted from pace and residual"),
            ("steps until at rest", spread(self.settling_steps), "measured, by going on"),
        ]  # fmt: skip
        by_modality = (
            ("cross/self, {}", self.cross_self, "how much its update listens to the others, over itself"),
            ("mean gate, {}", self.gates, "share of a proposed change that is taken"),
            ("answer moved by {}", self.answer, "change of the logits when this input changes by its size"),
        )
        for what, values, meaning in by_modality:
            rows += [(what.format(name), spread(each), meaning) for name, each in values.items()]
        differ = "between samples, relative; 0: all inputs end in one state"
        return [*rows, ("states differ by", number(self.spread), differ)]

    def __str__(self) -> str:
        title = f"{len(self.radius)} of {self.samples} samples" + (
            f", {self.diverged} diverged" if self.diverged else ""
        )
        parts = [f"verdict: {self.verdict.value}", *_wrapped(self.evidence), ""]
        for name, finding in self.findings.items():
            parts += [f"{QUESTIONS[name]}? {finding.answer}", *_wrapped(finding.words)]
        parts.append("")
        rows = [[name, value] for name, value, _ in self.numbers()]
        parts += [text_table([title, "median [min, max]"], rows), ""]
        if not self.singular:
            parts += [square_table("equilibrium of / pushed by", self.influence), ""]
            parts += [square_table("equilibrium of / input of", self.inputs), ""]
        else:
            parts += ["I - J is singular, or nearly: there is no table of influence", ""]
        return "\n".join([*parts, f"{self.products} products with the Jacobian; medians over the samples"])


@checked_options
def diagnose(
    model: Diagnosable,
    out: ModelOutput,
    *,
    data: Iterable[Any] | Any | None = None,
    samples: int = 4,
    probes: int = 2,
    seed: int = 0,
    bound: int = SETTLING_BOUND,
    branch: str | None = None,
) -> Diagnosis:
    """Radius, influence, cross/self ratios, gates and a verdict, for the first `samples` samples of a model's output.

    Compute `out` in eval mode. `data` are labelled batches with `features`, `masks` and `target`, on the model's
    device, or one such batch: with some hundreds of samples it is measured whether anything was learned and whether
    each modality counts for the answers; without them that stays open, and the verdict is never healthy. `bound` is
    the number of steps within which it is to settle. `branch` names an inner node of a tree; its root is looked at
    unless one is named.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2).eval()
    >>> with torch.no_grad():
    ...     out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> found = meq.diagnose(model, out, samples=1)
    >>> found.radius.shape  # B; print(found) is a page with a verdict
    torch.Size([1])
    """
    whole_number("samples", samples)
    whole_number("probes", probes)
    solution = _chosen_solution(model, out, branch).detach()
    finite = [row for row, stop in enumerate(solution.stop) if stop is not Stop.DIVERGED]
    tol = max(float(getattr(model, "tol", 0.0)) or USUAL_TOLERANCE, 4 * precision(solution.state))
    measured = Measurements(
        samples=len(solution.steps),
        diverged=len(solution.steps) - len(finite),
        tol=tol,
        spread=_spread(some_samples(solution, finite)) if len(finite) > 1 else math.nan,
    )
    if finite:
        few = some_samples(solution, finite[:samples])
        measured = _measure(measured, model, few, probes, seed, bound=bound, reads_answers=branch is None)
    answers = None if data is None else measure_answers(model, data, seed=seed)
    findings = {
        "settles": settles_finding(measured, bound=bound),
        "learned": learned_finding(answers),
        "counts": counts_finding(measured, answers),
        "coupled": coupled_finding(measured),
    }
    verdict, evidence = judge(measured, findings)
    return Diagnosis(verdict=verdict, evidence=evidence, findings=findings, answers=answers, **vars(measured))


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, 116, initial_indent="  ", subsequent_indent="  ")


def _chosen_solution(model: Any, out: ModelOutput, branch: str | None) -> Solution:
    if not hasattr(out, "solution") or not hasattr(out, "branches"):
        raise TypeError(
            f"diagnose(model, out) needs what the model returned, out = model(...), got {type(out).__name__}"
        )
    if branch is not None and branch not in out.branches:
        raise ValueError(f"there is no branch {branch!r}: {nearest(branch, out.branches)}")
    solution = out.solution if branch is None else out.branches[branch]
    if solution is None:
        raise ValueError(f"{type(model).__name__} does not iterate: there is no equilibrium to diagnose")
    if isinstance(solution.inputs, dict) and solution.inputs.get("keep"):
        raise ValueError("the output was computed with dropout: call model.eval() and the model again, then diagnose")
    return solution


def _measure(
    known: Measurements, model: Any, few: Solution, probes: int, seed: int, *, bound: int, reads_answers: bool
) -> Measurements:
    """What is known, and what takes samples that did not diverge."""
    operator = few.operator
    matrices = [matrix.formed(exact=False) for matrix in jacobians(operator, few)]
    undamped = spectrum_of(matrices, damping=1.0, tol=EIGENPAIR, norms=False, exact=False)
    radius = torch.full_like(undamped.radius, math.nan)
    bounds = (radius, radius)
    if isinstance(few.solver, Damped):
        damped = spectrum_of(matrices, damping=float(few.solver.step), tol=EIGENPAIR, norms=False, exact=False)
        radius, bounds = damped.radius, (damped.lowest, damped.highest)
    solved = solve_probes(matrices, probes=probes, seed=seed, tol=reachable_tolerance(few.state))
    responses = input_responses(operator, few, matrices, solved)
    blocks = block_statistics(operator, few, seed=seed)
    residual = torch.stack(list(few.final_residual.values())).nan_to_num(-1).amax(0).double()
    has_head = getattr(model, "head", None) is not None
    return replace(
        known,
        radius=undamped.radius,
        radius_bounds=(undamped.lowest, undamped.highest),
        damped_radius=radius,
        damped_bounds=bounds,
        statistic=whole_statistic(blocks, few).double(),
        residual=residual,
        further_steps=_further_steps(residual, radius, known.tol),
        settling_steps=steps_to_settle(few, tol=known.tol, bound=bound),
        influence=total_influence(matrices, solved),
        inputs=_relative(responses, few),
        solve_residual=column(each.residual for each in solved),
        cross_self={name: values.double() for name, values in cross_self_ratio(blocks).items()},
        gates={name: values.double() for name, values in model.gates(few).items()},
        answer=_answer_responses(model, few, probes, seed) if reads_answers and has_head else {},
        products=sum(matrix.products for matrix in matrices),
    )


def steps_to_settle(solution: Solution, *, tol: float, bound: int) -> Float[Tensor, " B"]:
    """How many steps from the start until every residual is at most `tol`; inf where `bound` steps are not enough.

    The steps go on from the read state with the solver it was found by, a solver with a memory from an empty one.
    """
    taken = solution.steps.double()
    left = max(1, bound - int(solution.steps.max()))
    with torch.no_grad():
        onward = solve(
            RestartedOperator(solution.operator, solution.state),
            solution.inputs,
            solver=solution.solver,
            steps=left,
            tol=tol,
            masks=dict(solution.masks),
        )
        last = torch.stack(list(onward.final_residual.values())).nan_to_num(-1).amax(0)
    settled = (onward.stop_codes == Stop.SETTLED.code) | (last <= tol)
    settled &= onward.stop_codes != Stop.DIVERGED.code
    total = taken + onward.steps.double()
    return total.where(settled & (total <= bound), torch.inf).cpu()


def _further_steps(residual: Tensor, radius: Tensor, tol: float) -> Tensor:
    """log(tol / residual) / log(radius): each step shrinks the slowest part by the radius."""
    steps = (math.log(tol) - residual.log()) / radius.log()
    steps = torch.where(radius < 1, steps.ceil(), torch.inf)
    return torch.where(residual <= tol, 0.0, torch.where(radius.isnan(), torch.nan, steps))


def _relative(responses: Blocks, solution: Solution) -> Blocks:
    """|dz_a| / |z_a| for a random change of u_b of size |u_b|: s_ab sqrt(n_a / n_b) |u_b| / |z_a|."""
    sources = find_sources(solution.operator, solution)
    table: Blocks = {}
    for a, row in responses.items():
        size = norm(solution.state[a], solution.masks.get(a)).double()
        entries = count_entries(solution.state[a], solution.masks.get(a)).double()
        for b, value in row.items():
            u, mask = sources.values[b], sources.masks.get(b)
            share = (entries / count_entries(u, mask).double()).sqrt()
            table.setdefault(a, {})[b] = value * share * norm(u, mask).double() / size
    return table


def _answer_responses(model: Any, solution: Solution, probes: int, seed: int) -> dict[str, Tensor]:
    """|dlogits/du_b|_F |u_b| / sqrt(n_b) by random signs, backwards through the steps that were taken."""
    sources = find_sources(solution.operator, solution)
    values = {name: x.clone().requires_grad_() for name, x in sources.values.items()}
    steps = max(1, int(solution.steps.max()))
    with torch.enable_grad():
        inputs = sources.rebuild(values)
        masks = dict(solution.masks)
        state = solve(solution.operator, inputs, solver=solution.solver, steps=steps, tol=0.0, masks=masks).state
        logits = model.read(state, masks)
    generator = torch.Generator().manual_seed(seed)
    squares = {name: torch.zeros(len(solution.steps), dtype=torch.float64) for name in values}
    for _ in range(probes):
        signs = torch.randint(0, 2, logits.shape, generator=generator).to(logits) * 2 - 1
        pulled = gradients({"logits": logits}, values, {"logits": signs})
        for name, gradient in zip(values, pulled, strict=True):
            squares[name] += norm(gradient, sources.masks.get(name)).double().square() / probes
    found = {}
    for name, square in squares.items():
        u, mask = sources.values[name], sources.masks.get(name)
        found[name] = (square / count_entries(u, mask).double()).sqrt() * norm(u, mask).double()
    return found


def _spread(solution: Solution) -> float:
    """The distance of the samples' mean tokens from their common mean, relative to their size."""
    parts = []
    for name, z in solution.state.items():
        mask = solution.masks.get(name)
        tokens = z.double().reshape(len(z), -1, z.shape[-1])
        weight = torch.ones(tokens.shape[:2]) if mask is None else mask.reshape(len(z), -1).double()
        parts.append((tokens * weight[..., None]).sum(1) / weight.sum(1, keepdim=True).clamp(min=1))
    x = torch.cat(parts, dim=1)
    return float((x - x.mean(0)).norm() / x.norm().clamp(min=torch.finfo(x.dtype).tiny))
