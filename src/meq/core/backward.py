"""Unrolled, Checkpointed, Implicit, Phantom: how gradients of the read state are taken.

All of them follow `torch.is_grad_enabled()`, never train or eval mode, and give the same state; they differ in memory
and in what the gradient is exact for.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from meq.core.iteration import Problem, Trace, Watch, iterate
from meq.core.operator import Inputs, evaluate
from meq.core.solution import Adjoint, Stop
from meq.core.solvers import Anderson, Solver, check_solver
from meq.core.state import State, detach, put_rows, take_rows
from meq.options import checked_options, tolerance, whole_number, wrong_object


class Backward(ABC):
    """A way of taking gradients.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> isinstance(model.backward, meq.Backward)
    True
    """

    @abstractmethod
    def run(self, problem: Problem, watch: Watch | None = None) -> Trace:
        """Iterate so that the gradient of the trace's state is this mode's."""


def check_backward(value: Any, label: str = "backward") -> Backward:
    """The value, if it is a way of taking gradients; names and classes are answered with what to write instead."""
    if not isinstance(value, Backward):
        known = {
            each.__name__.lower(): f"meq.{each.__name__}()" for each in (Unrolled, Checkpointed, Implicit, Phantom)
        }
        raise TypeError(wrong_object(label, value, known, "meq.Implicit()"))
    return value


@checked_options
@dataclass(frozen=True)
class Unrolled(Backward):
    """Backpropagate through every step: the exact gradient of the state that was read, root or not.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model.backward = meq.Unrolled()
    """

    def run(self, problem: Problem, watch: Watch | None = None) -> Trace:
        return iterate(problem, problem.start(), watch=watch)


@checked_options
@dataclass(frozen=True)
class Checkpointed(Backward):
    """As `Unrolled`, to the last bit, but each step's insides are computed again in backward instead of kept.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model.backward = meq.Checkpointed()
    """

    def run(self, problem: Problem, watch: Watch | None = None) -> Trace:
        def call(state: State, inputs: Inputs) -> State:
            return checkpoint(problem.operator, state, inputs, use_reentrant=False)

        return iterate(replace(problem, operator=call), problem.start(), watch=watch)


@checked_options
@dataclass(frozen=True)
class Phantom(Backward):
    """Backpropagate through the last `steps` steps only; with all of them it is `Unrolled`.

    A sample that settled earlier takes `steps` more steps at its equilibrium, for the gradient alone.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model.backward = meq.Phantom(steps=3)
    """

    steps: int = 1

    def __post_init__(self) -> None:
        whole_number("Phantom(steps)", self.steps)

    def run(self, problem: Problem, watch: Watch | None = None) -> Trace:
        untracked = max(0, problem.steps - self.steps)
        trace = iterate(problem, problem.start(), untracked=untracked, watch=watch)
        settled = trace.stopped(Stop.SETTLED)
        if untracked == 0 or not torch.is_grad_enabled() or not bool(settled.any()):
            return trace
        rows = settled.nonzero().squeeze(1)
        here = detach(take_rows(trace.state, rows))
        again = iterate(replace(problem.rows(rows), steps=self.steps, tol=0.0, wanted=frozenset()), here).state
        same_value = {name: here[name] + (again[name] - again[name].detach()) for name in here}
        return replace(trace, state=put_rows(trace.state, rows, same_value))


@checked_options
@dataclass(frozen=True, kw_only=True)
class Implicit(Backward):
    """The gradient of the equilibrium, by the adjoint equation v = J^T v + g at the state that was read.

    Memory of one step, whatever K. Exact at a root; the residual of the state and that of the adjoint
    (`solution.adjoint`, filled in backward) say how far from exact.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model.backward = meq.Implicit(steps=50)
    """

    solver: Solver = Anderson()
    steps: int | None = None
    """Budget of the adjoint equation; None for as many as the solve itself may take, which is faster than `Unrolled` at
    every K. Where the gradient has to be exact, give more."""
    tol: float = 1e-6

    def __post_init__(self) -> None:
        check_solver(self.solver, "Implicit(solver)")
        if self.steps is not None:
            whole_number("Implicit(steps)", self.steps)
        tolerance("Implicit(tol)", self.tol)

    def run(self, problem: Problem, watch: Watch | None = None) -> Trace:
        if torch.is_grad_enabled() and problem.solver.learned:
            raise ValueError(
                "the equilibrium does not depend on the damping step, so Implicit has no gradient for a learned one: "
                "use Unrolled, Checkpointed or Phantom, or detach the step"
            )
        with torch.no_grad():
            trace = iterate(problem, problem.start(), watch=watch)
        if not torch.is_grad_enabled() or bool(trace.stopped(Stop.DIVERGED).any()):
            return trace  # diverged rows are dropped first, then this runs again without them
        state = {name: z.detach().requires_grad_() for name, z in trace.state.items()}
        image = evaluate(problem.operator, state, problem.inputs)
        if not any(x.requires_grad for x in image.values()):
            return trace
        adjoint = _AdjointSolve(self, problem, state, image)
        values = _ImplicitState.apply(adjoint, *image.values())
        return replace(trace, state=dict(zip(image, values, strict=True)), adjoint=adjoint.report)


class _AdjointOperator:
    """v -> J^T v + g, with J the undamped Jacobian at one state, whose graph is kept and walked again and again."""

    def __init__(self, state: State, image: State) -> None:
        self.state, self.image = state, image

    def start(self, gradient: State) -> State:
        return gradient

    def __call__(self, v: State, gradient: State) -> State:
        with torch.enable_grad():
            pulled = torch.autograd.grad(
                list(self.image.values()),
                list(self.state.values()),
                [v[name] for name in self.image],
                retain_graph=True,
                materialize_grads=True,
            )
        return {name: x + gradient[name] for name, x in zip(self.state, pulled, strict=True)}


class _AdjointSolve:
    """Solves the adjoint equation when backward asks for it, and reports how that went."""

    def __init__(self, mode: Implicit, problem: Problem, state: State, image: State) -> None:
        self.operator, self.report = _AdjointOperator(state, image), Adjoint()
        self.mode, self.masks = mode, problem.masks
        self.steps = problem.steps if mode.steps is None else mode.steps

    def __call__(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        gradient = dict(zip(self.operator.image, gradients, strict=True))
        problem = Problem(
            operator=self.operator,
            inputs=gradient,
            masks=self.masks,
            solver=self.mode.solver,
            steps=self.steps,
            tol=self.mode.tol,
        )
        trace = iterate(problem, gradient)
        self.report.residuals, self.report.steps, self.report.stop = trace.residuals, trace.steps, trace.reasons
        if Stop.DIVERGED in trace.reasons:
            warnings.warn(
                "the adjoint equation of Implicit diverged for some samples, so their gradients are wrong: "
                "use Unrolled, or a solver such as Anderson for the adjoint",
                RuntimeWarning,
                stacklevel=2,
            )
        return [trace.state[name] for name in gradient]


class _ImplicitState(torch.autograd.Function):
    """Forward: the state that was read. Backward: the adjoint, handed to the graph of one operator call."""

    @staticmethod
    def forward(ctx: Any, adjoint: _AdjointSolve, *image: Tensor) -> tuple[Tensor, ...]:
        ctx.adjoint = adjoint
        return tuple(z.detach() for z in adjoint.operator.state.values())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.adjoint(gradients))
