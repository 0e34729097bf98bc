"""The model under study: what the instruments ask of it, and how it is held still while it is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from meq.core.backward import Backward, Unrolled
from meq.core.solution import Solution, Stop
from meq.core.solve import Trajectory, solve
from meq.core.solvers import Solver
from meq.core.state import State


@runtime_checkable
class Subject(Protocol):
    """A model that iterates and can be read at any state; those of `meq.models` are, so may be one of your own."""

    steps: int
    """K, the step its answer is read at."""
    head_kind: str
    """What its logits mean: a key of `meq.models.heads.HEADS`."""

    @property
    def operator(self) -> Any: ...

    def read(self, state: State, masks: Mapping[str, Tensor]) -> Tensor:
        """The logits of a state."""

    def damped(self) -> Solver: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def __call__(self, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None) -> Any:
        """An output with `logits` and `solution`."""


@runtime_checkable
class HasModules(Protocol):
    """A module, as far as its parts are asked for."""

    def modules(self) -> Iterator[nn.Module]: ...


@contextmanager
def held_still(model: HasModules) -> Iterator[None]:
    """Dropout off while measuring; afterwards every part is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@dataclass(frozen=True, eq=False)
class Case:
    """One batch before a model that is held still: its iteration can be walked again, to any step, and read anywhere.

    For multiple choice every choice is a row of its own: R = B A rows for B samples; otherwise R = B.
    """

    model: Subject
    solution: Solution
    answer: Float[Tensor, "B C"]
    """The logits that the model itself gives."""
    solver: Solver

    @property
    def choices(self) -> int | None:
        return self.answer.shape[1] if self.model.head_kind == "choices" else None

    def walk(self, steps: int, *, trajectory: Trajectory, backward: Backward = Unrolled()) -> Solution:
        """Exactly `steps` steps from the start: a tolerance would stop samples at different k."""
        return solve(
            self.solution.operator,
            self.solution.inputs,
            solver=self.solver,
            steps=steps,
            tol=0.0,
            backward=backward,
            masks=self.solution.masks,
            trajectory=trajectory,
        )

    def read(self, state: State) -> Float[Tensor, "B C"]:
        """The logits of a state, per sample."""
        logits = self.model.read(state, self.solution.masks)
        return logits if self.choices is None else logits.unflatten(0, (-1, self.choices))[..., 0]


def open_case(model: Subject, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None) -> Case:
    """Run the model once, as its user would, and take from that what walking it again needs."""
    check_iterates(model)
    output = model(features, masks)
    if output.logits is None:
        raise ValueError(f"{type(model).__name__} was built without classes: it has no head to read states with")
    solver = getattr(model, "solver", None) or model.damped()
    return Case(model, output.solution.detach(), output.logits.detach(), solver)  # its inputs keep their graph


def check_iterates(model: object) -> None:
    if getattr(model, "operator", None) is None:
        raise ValueError(
            f"{type(model).__name__} does not iterate, so there are no steps to look at: "
            "use a model with an operator, such as MutualEquilibrium"
        )


def stopped_at(solution: Solution) -> Int[Tensor, " R"]:
    """The last step at which each row was finite; -1 for the rows that stayed so."""
    return solution.steps.where(solution.stop_codes == Stop.DIVERGED.code, -1)
