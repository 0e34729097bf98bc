"""Training in which every sample of a batch goes as deep as was drawn for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from meq.core.backward import Backward, Phantom, Unrolled
from meq.core.iteration import AtSteps
from meq.core.operator import Inputs, Operator, RestartedOperator
from meq.core.solution import Solution
from meq.core.solve import solve
from meq.core.solvers import Solver
from meq.core.state import Masks, State, detach, per_sample


@dataclass(frozen=True, kw_only=True, eq=False)
class DepthPlan:
    """How deep each sample goes, and through how many of its last steps gradients flow."""

    steps: Int[Tensor, " B"]
    tracked: Int[Tensor, " B"]
    """From 1 to all of them."""

    def of_rows(self, rows: int, device: torch.device) -> DepthPlan:
        """For so many rows: in multiple choice every choice of an example is one, and goes as deep as the others."""
        each, left = divmod(rows, len(self.steps))
        if left or not each:
            raise ValueError(f"the depths of {len(self.steps)} samples were drawn, and the batch has {rows} rows")
        return DepthPlan(
            steps=self.steps.to(device).repeat_interleave(each), tracked=self.tracked.to(device).repeat_interleave(each)
        )

    def at_most(self, tracked: int) -> DepthPlan:
        """The same depths with gradients through no more than so many steps."""
        return replace(self, tracked=self.tracked.clamp(max=tracked))


def solve_planned(
    plan: DepthPlan,
    operator: Operator,
    inputs: Inputs,
    *,
    solver: Solver,
    backward: Backward,
    masks: Masks,
    later: Operator | None = None,
) -> Solution:
    """Every sample to its own depth, all steps taken; its residuals are those of the steps that carry gradients.

    First the steps without gradients, then from there those with: so both are runs of the one loop, in which samples
    stop at steps that are known before. What a solver remembers of the first ones is forgotten. `later` is the map of
    the second part, where it differs.
    """
    if isinstance(backward, Phantom):
        plan, backward = plan.at_most(backward.steps), Unrolled()
    free, start = plan.steps - plan.tracked, operator.start(inputs)
    if bool((free > 0).any()):
        start = _after(free, start, operator, inputs, solver=solver, masks=masks)
    found = solve(
        RestartedOperator(later or operator, start),
        inputs,
        solver=solver,
        steps=int(plan.tracked.max()),
        tol=0.0,
        backward=backward,
        masks=masks,
        stop_when=AtSteps(plan.tracked),
    )
    return replace(found, steps=free + found.steps)


def _after(
    free: Int[Tensor, " B"], start: State, operator: Operator, inputs: Inputs, *, solver: Solver, masks: Masks
) -> State:
    """The states after the steps without gradients; the start itself, with its graph, where there are none."""
    with torch.no_grad():
        begun = RestartedOperator(operator, detach(start))
        rule = AtSteps(free)
        there = solve(begun, inputs, solver=solver, steps=int(free.max()), tol=0.0, masks=masks, stop_when=rule).state
    return {name: torch.where(per_sample(free > 0, z), there[name], z) for name, z in start.items()}
