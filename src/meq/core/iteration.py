"""The one loop. Every solver, every way of taking gradients and the adjoint equation run through `iterate`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.core.operator import Inputs, evaluate
from meq.core.solution import Adjoint, Stop, reasons, relative
from meq.core.solvers import Memory, Solver
from meq.core.state import (
    Masks,
    State,
    all_finite,
    batch_size,
    check_batch,
    check_devices,
    check_masks,
    check_start,
    choose,
    detach,
    difference,
    large_norm,
    norm,
    put_rows,
    sound,
    take_rows,
    under_autocast,
    working_dtype,
)

LARGE = 1e15
"""Norms beyond this are on their way to squares that overflow."""
TOLERANCE = 1e-3
"""The residual at which a sample settles, unless another one is asked for."""
Watch = Callable[[int, State], None]


@runtime_checkable
class StopRule(Protocol):
    """Another reason for a sample to stop than its residual reaching the tolerance. One object serves one solve."""

    by_residual: bool
    """True: it is asked with the residuals of z(k), known once T(z(k)) is; False: with z(k), before T is called."""

    def __call__(self, k: int, seen: State, active: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """The samples that stop at z(k), k = 0, 1, ... `seen` is z(k) or, by modality, its residuals, NaN where one is
        absent; what is said of samples that are not active any more is not heard."""


class AtSteps:
    """Stops each sample at a step that is known before, whatever its state: the one rule that goes with gradients."""

    by_residual = False

    def __init__(self, steps: Int[Tensor, " B"]) -> None:
        self.steps = steps

    def __call__(self, k: int, seen: State, active: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
        return self.steps <= k

    def rows(self, rows: Int[Tensor, " R"]) -> AtSteps:
        return AtSteps(self.steps[rows])


@dataclass(frozen=True)
class Problem:
    """Everything one run of the loop needs to know."""

    operator: Any
    inputs: Inputs
    masks: Masks
    solver: Solver
    steps: int
    tol: float
    wanted: frozenset[int] = frozenset()
    """The steps whose states are kept."""
    stop_when: StopRule | None = None

    def start(self) -> State:
        """z(0), checked. Under autocast a state is at least float32: the map may be rough, the sum of moves may not."""
        try:
            state = self.operator.start(self.inputs)
        except RuntimeError:  # what torch says of two devices names neither the input nor what to do
            check_devices(self.inputs)
            raise
        check_start(state)
        check_masks(self.masks, state)
        check_batch(self.inputs, state)
        self._check_tolerance(state)
        if under_autocast(next(iter(state.values()))):
            state = {name: z.to(torch.promote_types(z.dtype, torch.float32)) for name, z in state.items()}
        return state

    def _check_tolerance(self, state: State) -> None:
        """Warn about a tolerance that rounding alone keeps out of reach. Not about the default, which nobody
        chose: in bfloat16 it may go unreached, and the reason for stopping says so."""
        if torch.compiler.is_compiling() or self.tol == TOLERANCE:
            return
        for name, z in state.items():
            dtype = working_dtype(z)
            if 0 < self.tol < torch.finfo(dtype).eps:
                warnings.warn(
                    f"tol={self.tol:g} is below what {dtype} can resolve (about {torch.finfo(dtype).eps:.1g}), so "
                    f"{name!r} may never settle: raise tol, or set tol=0 to take every step",
                    stacklevel=2,
                )

    def rows(self, rows: Int[Tensor, " R"]) -> Problem:
        """The same problem for some of the samples."""
        rule = self.stop_when.rows(rows) if isinstance(self.stop_when, AtSteps) else self.stop_when
        return replace(
            self, inputs=take_rows(self.inputs, rows), masks=take_rows(dict(self.masks), rows), stop_when=rule
        )


@dataclass(frozen=True)
class Trace:
    """What one run of the loop leaves behind; see `Solution` for the meaning of its tensors."""

    state: State
    residuals: dict[str, Float[Tensor, "K B"]]
    steps: Int[Tensor, " B"]
    stop: Int[Tensor, " B"]
    kept: dict[int, State]
    adjoint: Adjoint | None = None

    @property
    def reasons(self) -> list[Stop]:
        return reasons(self.stop)

    def stopped(self, reason: Stop) -> Bool[Tensor, " B"]:
        return self.stop == reason.code

    def detach(self) -> Trace:
        return replace(self, state=detach(self.state), kept={k: detach(state) for k, state in self.kept.items()})

    def with_rows(self, rows: Int[Tensor, " R"], part: Trace) -> Trace:
        """This trace with some samples taken from another."""
        residuals = {name: old.index_copy(1, rows, part.residuals[name]) for name, old in self.residuals.items()}
        return Trace(
            state=put_rows(self.state, rows, part.state),
            residuals=residuals,
            steps=self.steps.index_copy(0, rows, part.steps),
            stop=self.stop.index_copy(0, rows, part.stop),
            kept={k: put_rows(state, rows, part.kept[k]) for k, state in self.kept.items()},
            adjoint=part.adjoint,
        )


def iterate(problem: Problem, state: State, *, untracked: int = 0, watch: Watch | None = None) -> Trace:
    """Step from `state` until every sample stops. The first `untracked` steps leave no graph."""
    kept: dict[int, State] = {}

    def see(k: int) -> None:
        if k in problem.wanted:
            kept[k] = state
        if watch is not None:
            watch(k, detach(state))

    see(0)
    ledger, memory = Ledger(problem, state), None
    tracking = torch.is_grad_enabled()
    for k in range(problem.steps):
        if ledger.ask_about_state(k, state):
            break
        with torch.set_grad_enabled(tracking and k >= untracked):
            proposal, move, memory = take_step(problem, state, memory)
            with torch.no_grad():
                stepping = ledger.judge(k, move, proposal)
            state = proposal if stepping is None else choose(stepping, proposal, state)
            if tracking and k == untracked:
                watch_gradient(state)
        del move, proposal
        see(k + 1)
        if ledger.done:
            break
    kept.update({k: state for k in problem.wanted if k not in kept})
    return ledger.close(state, kept)


def take_step(problem: Problem, state: State, memory: Memory = None) -> tuple[State, State, Memory]:
    """z(k) -> the proposed z(k+1), the move T(z(k)) - z(k), and the solver's memory. One operator call."""
    move = difference(evaluate(problem.operator, state, problem.inputs), state)  # T(z) itself is not kept
    proposal, memory = problem.solver.advance(state, move, memory, problem.masks)
    return proposal, move, memory


def watch_gradient(state: State) -> None:
    """Say so when the gradient that comes back through the iteration is not finite, as diverged states are said so.

    Looking at the first tracked state is enough: what is not finite stays so on its way back. Tracers and transforms of
    `torch.func` cannot wait for a value and are left alone.
    """
    for name, z in state.items():
        if z.requires_grad and not (torch.compiler.is_compiling() or z.device.type == "meta" or _is_transformed(z)):
            z.register_hook(partial(_warn_not_finite, name))


def _warn_not_finite(name: str, gradient: Tensor | None) -> None:
    if gradient is None or _is_transformed(gradient) or (gradient.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    with torch.no_grad():
        if bool(torch.isfinite(gradient.sum())) or bool(torch.isfinite(gradient).all()):  # the sum alone may overflow
            return
        rows = (~torch.isfinite(gradient)).flatten(1).any(1).nonzero().flatten().tolist()
    warnings.warn(
        f"the gradient diverged: what comes back through the iteration to {name!r} is not finite for samples "
        f"{rows[:8]}, although their states are: the map's derivative is not finite there, or grew beyond the dtype",
        RuntimeWarning,
        stacklevel=2,
    )


def _is_transformed(x: Tensor) -> bool:
    """Does it stand for many tensors, or for a level of differentiation, so that it has no value to look at?"""
    functorch = torch._C._functorch
    return functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x)


class Ledger:
    """Who is still iterating, what was measured, and who stopped why.

    On a CPU, or with a tolerance, it looks at the samples after each step; while all of them go on, a step costs the
    operator, the solver and two norms. Otherwise (traced, on the meta device, or on an accelerator with tol = 0) it is
    blind: it never waits for a value, and every step is chosen row by row. A rule for stopping is looked at on an
    accelerator, too; traced or on the meta device there is nothing to look at, and all steps are taken.
    """

    def __init__(self, problem: Problem, state: State) -> None:
        device = next(iter(state.values())).device
        self.problem = problem
        unknown = torch.compiler.is_compiling() or device.type == "meta"
        self.rule = None if unknown else problem.stop_when
        self.blind = unknown or (problem.tol == 0 and self.rule is None and device.type != "cpu")
        self.size_of = large_norm if self.blind else norm
        self.active = torch.ones(batch_size(state), dtype=torch.bool, device=device)
        self.steps = torch.full_like(self.active, problem.steps, dtype=torch.long)
        self.stop = torch.full_like(self.active, Stop.BUDGET.code, dtype=torch.long)
        self.everyone, self.done = not self.blind, False
        self.took_part: list[Bool[Tensor, " B"]] = []
        self.gaps: list[State] = []
        with torch.no_grad():
            self.sizes = [self._first_sizes(state)]

    def judge(self, k: int, move: State, proposal: State) -> Bool[Tensor, " B"] | None:
        """Measure step k. None: every sample takes the proposal; otherwise the rows that do."""
        if self.unsure:
            self._look_closely(self._norms(move, large_norm))
        gap, size = self._norms(move, self.size_of), self._norms(proposal, self.size_of)
        read = self._ask_about_residuals(k, gap)
        if self.everyone and read is None and self._unremarkable(gap, size):
            self._note(gap, size)
            return None

        if not self.blind:  # rare, so it may be exact: a norm overflows long before its entries do
            gap, size = self._norms(move, large_norm), self._norms(proposal, large_norm)
        finite = all_finite(move, self.problem.masks) & all_finite(proposal, self.problem.masks)
        settled = self.active & finite & self._within(gap)
        diverged = self.active & ~finite
        going = self.active & ~(settled | diverged)
        self.stop = torch.where(settled, Stop.SETTLED.code, torch.where(diverged, Stop.DIVERGED.code, self.stop))
        self.steps = torch.where(settled | diverged, k, self.steps)
        if read is not None:
            going = self._leave(k, going & read, going)
        self._note(gap, {name: torch.where(going, size[name], old) for name, old in self.sizes[-1].items()})
        self.active = going
        if not self.blind:
            self.everyone, self.done = bool(going.all()), not bool(going.any())
        return going

    def ask_about_state(self, k: int, state: State) -> bool:
        """Ask a rule that looks at z(k) who stops there; is nobody left?"""
        if self.rule is None or self.rule.by_residual:
            return False
        with torch.no_grad():
            read = self.active & self.rule(k, state, self.active)
            if bool(read.any()):
                self.active = self._leave(k, read, self.active)
                self.everyone, self.done = False, not bool(self.active.any())
        return self.done

    def _ask_about_residuals(self, k: int, gap: State) -> Bool[Tensor, " B"] | None:
        """The rows that a rule stops for the residuals of z(k); None without such a rule, and where there are none."""
        if self.rule is None or not self.rule.by_residual:
            return None
        masks, size = self.problem.masks, self.sizes[-1]
        read = self.rule(k, {name: relative(x, size[name], masks.get(name)) for name, x in gap.items()}, self.active)
        return read if bool((self.active & read).any()) else None

    def _leave(self, k: int, read: Bool[Tensor, " B"], going: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """Note who was read at z(k); the rows that go on."""
        self.stop = torch.where(read, Stop.READ.code, self.stop)
        self.steps = torch.where(read, k, self.steps)
        return going & ~read

    def close(self, state: State, kept: dict[int, State]) -> Trace:
        return Trace(state, {name: self._residuals(name) for name in state}, self.steps, self.stop, kept)

    def _note(self, gap: State, size: State) -> None:
        self.took_part.append(self.active)
        self.gaps.append(gap)
        self.sizes.append(size)

    def _first_sizes(self, state: State) -> State:
        """The plain norms are fast; where they do not tell, a closer look says whether they will."""
        sizes = self._norms(state, self.size_of)
        self.unsure = not self.blind and not bool(sound(torch.stack([*sizes.values()])).all())
        if self.unsure:
            sizes = self._norms(state, large_norm)
            self._look_closely(sizes)
            self.unsure = any(bool((size == 0).any()) for size in sizes.values())  # the first move will tell
        return sizes

    def _look_closely(self, exact: State) -> None:
        """Measure this whole run by large norms, if there is a sample that needs it; 0 is 0 by either."""
        sizes = torch.stack([*exact.values()])
        self.unsure = False
        if not bool((sound(sizes) & (sizes < LARGE) | (sizes == 0)).all()):
            self.size_of = large_norm

    def _norms(self, state: State, size_of: Callable[[Tensor, Tensor | None], Tensor]) -> State:
        return {name: size_of(x, self.problem.masks.get(name)) for name, x in state.items()}

    def _unremarkable(self, gap: State, size: State) -> bool:
        """Is everything finite, as far as the norms tell, and no sample settled?"""
        total = torch.stack([*gap.values(), *size.values()]).sum()
        if self.problem.tol == 0:
            return math.isfinite(total)
        return bool(torch.isfinite(total) & ~self._within(gap).any())

    def _within(self, gap: State) -> Bool[Tensor, " B"]:
        """Is every modality at or below the tolerance? With tol = 0 no sample settles: all steps are taken."""
        if self.problem.tol == 0:
            return torch.zeros_like(self.active)
        tol, sizes = self.problem.tol, self.sizes[-1]
        return torch.stack([gap[name] <= tol * sizes[name] for name in gap]).all(0)

    def _residuals(self, name: str) -> Float[Tensor, "K B"]:
        if not self.gaps:  # a rule stopped everybody at the start
            return torch.full_like(self.sizes[0][name], torch.nan).repeat(self.problem.steps, 1)
        gap, size = torch.stack([row[name] for row in self.gaps]), torch.stack([row[name] for row in self.sizes[:-1]])
        rows = torch.where(torch.stack(self.took_part), relative(gap, size, self.problem.masks.get(name)), torch.nan)
        missing = self.problem.steps - len(rows)
        return torch.nn.functional.pad(rows, (0, 0, 0, missing), value=torch.nan) if missing else rows
