"""Does the iteration come to rest, and after how many steps? Measured by going on from the state that was read."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.linear import precision
from meq.analysis.sensitivity import From
from meq.analysis.tables import number
from meq.core.solution import Solution, Stop
from meq.core.solve import solve

USUAL_TOLERANCE = 1e-3
"""Asked of a model that was told to take every step (tol = 0), which says nothing of when it counts as settled."""


def settling_tolerance(asked: float, solution: Solution) -> float:
    """What the model asks for, as far as the states' precision can show it."""
    return max(asked or USUAL_TOLERANCE, 4 * precision(solution.state))


def steps_to_settle(solution: Solution, *, tol: float, bound: int) -> Float[Tensor, " B"]:
    """How many steps from the start until every residual is at most `tol`; inf where `bound` steps are not enough.

    The steps go on from the read state with the solver it was found by, a solver with a memory from an empty one.
    """
    taken = solution.steps.double()
    left = max(1, bound - int(solution.steps.max()))
    with torch.no_grad():
        onward = solve(
            From(solution.operator, solution.state),
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


def settling_in_words(steps: Float[Tensor, " B"], predicted: Float[Tensor, " B"], *, tol: float, bound: int) -> str:
    """`settles within 34 steps`, or what is known where it does not."""
    finite = steps[steps.isfinite()]
    if len(finite) == len(steps):
        return f"to {tol:g} within {int(finite.max()):,} steps"
    words = f"{len(steps) - len(finite)} of {len(steps)} samples are not at rest (to {tol:g}) within {bound:,} steps"
    guessed = predicted[steps.isinf() & predicted.isfinite()]
    if len(guessed) and float(guessed.max()) > 0:
        words += f"; at the pace of the radius it would take about {_count(float(guessed.max()))} further steps"
    return words


def _count(steps: float) -> str:
    return f"{int(steps):,}" if steps < 1e6 else number(steps)
