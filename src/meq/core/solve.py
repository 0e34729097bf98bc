"""solve(): the verb. Everything else in `meq` is built from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch

from meq.core.backward import Backward, Phantom, Unrolled, check_backward
from meq.core.iteration import TOLERANCE, AtSteps, Problem, StopRule, Trace, Watch
from meq.core.operator import Inputs, Operator
from meq.core.solution import Solution, Stop
from meq.core.solvers import Damped, Solver, check_solver
from meq.core.state import NO_MASKS, Masks, State
from meq.options import checked_options, nearest, tolerance, whole_number

Trajectory = Literal["all"] | Iterable[int] | Callable[[int, State], None]


@checked_options
def solve(
    operator: Operator,
    inputs: Inputs,
    *,
    solver: Solver = Damped(),
    steps: int = 10,
    tol: float = TOLERANCE,
    backward: Backward = Unrolled(),
    masks: Masks | None = None,
    trajectory: Trajectory | None = None,
    stop_when: StopRule | None = None,
) -> Solution:
    """Iterate z <- T(z) from `operator.start(inputs)` until each sample settles or the budget is spent.

    A sample settles at the first state whose residual |z - T(z)| / |z| is at or below `tol` in every modality it has;
    `tol=0` takes exactly `steps` steps. `masks` tell which tokens are real. `trajectory` keeps states: "all", the
    numbers of some steps (0 is the start), or a function called with (k, state) as they come. A sample that stops
    being finite keeps its last finite state, gets no gradient, and leaves the others as if it had never been there.
    `stop_when` is one more way to stop, for answers without gradients: it is asked at every step which samples are
    read there. `AtSteps`, which knows the steps before, goes with gradients as well. A compiled or exported solve asks
    nobody, and takes all steps.

    >>> class Rotation(meq.Operator):
    ...     def start(self, inputs):
    ...         return {name: torch.zeros_like(x) for name, x in inputs.items()}
    ...     def forward(self, state, inputs):
    ...         return {"a": -0.9 * state["b"] + inputs["a"], "b": 0.9 * state["a"] + inputs["b"]}
    >>> inputs = {"a": torch.ones(4, 8), "b": torch.ones(4, 8)}  # B D each
    >>> solution = meq.solve(Rotation(), inputs, solver=meq.Anderson(), steps=50, tol=1e-3)
    >>> solution.steps.shape, solution.stop[0].name
    (torch.Size([4]), 'SETTLED')
    """
    steps, tol = whole_number("steps", steps), tolerance("tol", tol)
    check_solver(solver)
    check_backward(backward)
    if stop_when is not None and torch.is_grad_enabled():
        _check_planned(stop_when, backward)
    wanted, watch = _read_trajectory(trajectory, steps)
    problem = Problem(operator, inputs, dict(masks or NO_MASKS), solver, steps, tol, wanted, stop_when)
    trace = _run(problem, backward, watch)
    kept = {k: trace.kept[k] for k in sorted(trace.kept)} if wanted else None
    return Solution(
        state=trace.state,
        residuals=trace.residuals,
        steps=trace.steps,
        stop_codes=trace.stop,
        inputs=inputs,
        masks=problem.masks,
        trajectory=kept,
        adjoint=trace.adjoint,
        operator=operator,
        solver=solver,
    )


def _check_planned(rule: StopRule, backward: Backward) -> None:
    """With gradients, samples may stop at steps that are known before; those that are tracked must be their own."""
    if not isinstance(rule, AtSteps):
        raise ValueError("a rule in `stop_when` is for answers, not for training: call solve under torch.no_grad()")
    if isinstance(backward, Phantom):
        raise ValueError("Phantom tracks the last steps of the batch, and samples that stop before them have none")


def _run(problem: Problem, backward: Backward, watch: Watch | None) -> Trace:
    """One run; with gradients, diverged samples are dropped and the rest is solved again without them.

    Masking them would not do: their graph holds infinities, and 0 * inf is NaN in everybody's gradient.
    """
    trace = backward.run(problem, watch)
    lost = trace.stopped(Stop.DIVERGED)
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or lost.device.type == "meta":
        return trace
    if not bool(lost.any()):
        return trace
    trace = trace.detach()
    if bool(lost.all()):
        return trace
    rows = (~lost).nonzero().squeeze(1)
    return trace.with_rows(rows, _run(problem.rows(rows), backward, None))


def _read_trajectory(asked: Trajectory | None, steps: int) -> tuple[frozenset[int], Watch | None]:
    """The steps to keep and the function to call."""
    if asked is None:
        return frozenset(), None
    if callable(asked):
        return frozenset(), asked
    if isinstance(asked, str):
        if asked != "all":
            raise ValueError(f"trajectory has no mode {asked!r}: {nearest(asked, ['all'])}")
        return frozenset(range(steps + 1)), None
    wanted = frozenset(asked)
    outside = sorted(k for k in wanted if not 0 <= k <= steps)
    if outside:
        raise ValueError(f"trajectory asks for steps {outside}, but a solve of {steps} steps has states 0 to {steps}")
    return wanted, None
