"""The one loop. Every solver, every way of taking gradients and the adjoint equation run through `iterate`."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
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
    SMALL,
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
    is_transformed,
    large_norm,
    lone_norm,
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
Measure = Callable[[Tensor, Tensor | None], Any]
Norms = dict[str, Any]
"""By modality, a norm per sample (B); of a sample that is alone, a number, which costs less than a tensor."""


@runtime_checkable
class StopRule(Protocol):
    """Another reason for a sample to stop than its residual reaching the tolerance. One object serves one solve."""

    by_residual: bool
    """True: it is asked with the residuals of z(k), known once T(z(k)) is; False: with z(k), before T is called."""

    def __call__(self, k: int, seen: State, active: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """The samples that stop at z(k), k = 0, 1, ... `seen` is z(k) or, by modality, its residuals, NaN where one is
        absent; what is said of samples that are not active any more is not heard."""


@runtime_checkable
class DividedRule(StopRule, Protocol):
    """A rule that can go on with some of its samples."""

    rows_leave: bool

    def rows(self, rows: Int[Tensor, " R"]) -> StopRule: ...


class AtSteps:
    """Stops each sample at a step that is known before, whatever its state: the one rule that goes with gradients."""

    by_residual = False
    rows_leave = True

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

    @property
    def rows_leave(self) -> bool:
        """May samples that are done leave the batch? Not where somebody looks at all of them at every step."""
        rule = self.stop_when is None or (isinstance(self.stop_when, DividedRule) and self.stop_when.rows_leave)
        known = self.solver.rows_leave and bool(getattr(self.operator, "rows_leave", False))
        return known and rule and not self.wanted

    def going_on(self, whole: Problem, rows: Int[Tensor, " R"], here: Int[Tensor, " R"]) -> Problem:
        """The whole problem for its samples `rows`, which are those `here` of this one, whose rule has seen them."""
        part = replace(whole, stop_when=None).rows(rows)
        return replace(part, stop_when=self.stop_when.rows(here) if isinstance(self.stop_when, DividedRule) else None)

    def rows(self, rows: Int[Tensor, " R"]) -> Problem:
        """The same problem for some of the samples."""
        rule = self.stop_when.rows(rows) if isinstance(self.stop_when, DividedRule) else self.stop_when
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


FEW = 7 / 8
"""Without gradients, samples that are done leave the batch as soon as no more than this share of it is left. Copying
the rest costs less than a step."""


def iterate(problem: Problem, state: State, *, untracked: int = 0, watch: Watch | None = None) -> Trace:
    """Step from `state` until every sample stops. The first `untracked` steps leave no graph."""
    kept: dict[int, State] = {}

    def see(k: int) -> None:
        if k in problem.wanted:
            kept[k] = state
        if watch is not None:
            watch(k, detach(state))

    see(0)
    ledger, memory, still = Ledger(problem, state), None, nullcontext()
    tracking = torch.is_grad_enabled()
    leaving = problem.rows_leave and watch is None and not tracking and not ledger.blind
    now, rows, left = problem, None, None
    """The problem of those who are still in the batch, their places in the whole one, and what the others came to."""
    for k in range(problem.steps):
        if ledger.ask_about_state(k, state):
            break
        if leaving and not ledger.everyone:  # who is read at z(k) takes no part in step k any more
            here = ledger.active.nonzero().squeeze(1)
            if len(here) <= FEW * len(ledger.active):
                if left is None:  # what the others come to is written into it, and it may be the inputs' or a solver's
                    state = {name: z.clone() for name, z in state.items()}
                left = _put_back(left, rows, ledger.close(state, {}), ledger.first)
                rows = here if rows is None else rows[here]
                now = now.going_on(problem, rows, here)
                state, memory = take_rows(state, here), take_rows(memory, here)
                ledger = ledger.of_rows(now, here, k)
        with torch.set_grad_enabled(k >= untracked) if tracking else still:
            proposal, move, memory = take_step(now, state, memory)
            with torch.no_grad() if tracking else still:
                stepping = ledger.judge(k, move, proposal)
            state = proposal if stepping is None else choose(stepping, proposal, state)
            if tracking and k == untracked:
                watch_gradient(state)
        del move, proposal
        see(k + 1)
        if ledger.done:
            break
    kept.update({k: state for k in problem.wanted if k not in kept})
    return _put_back(left, rows, ledger.close(state, kept), ledger.first)


def _put_back(left: Trace | None, rows: Int[Tensor, " R"] | None, part: Trace, first: int) -> Trace:
    """The trace of the whole batch, with what its `rows` came to from step `first` on."""
    if left is None or rows is None:
        return part
    for name, old in left.residuals.items():  # in place: these tensors are the loop's own
        old[first:, rows] = part.residuals[name][first:]
        left.state[name].index_copy_(0, rows, part.state[name])
    left.steps.index_copy_(0, rows, part.steps)
    left.stop.index_copy_(0, rows, part.stop)
    return left


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
        if z.requires_grad and not (torch.compiler.is_compiling() or z.device.type == "meta" or is_transformed(z)):
            z.register_hook(partial(_warn_not_finite, name))


def _warn_not_finite(name: str, gradient: Tensor | None) -> None:
    if gradient is None or is_transformed(gradient) or (gradient.is_cuda and torch.cuda.is_current_stream_capturing()):
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


SELDOM = 16
"""So many steps lie between two questions to an accelerator whether any sample is left: an answer is waited for."""


class Ledger:
    """Who is still iterating, what was measured, and who stopped why.

    On a CPU it looks at the samples after each step; while all of them go on, a step costs the operator, the solver and
    two norms. Elsewhere (traced, on the meta device, on an accelerator) it is blind: it never waits for a value, and
    every step is chosen row by row. With a tolerance, an accelerator is asked now and then whether anybody is left, so
    that a long solve ends. A rule for stopping is looked at there at every step; traced or on the meta device there is
    nothing to look at, and all steps are taken.
    """

    def __init__(self, problem: Problem, state: State) -> None:
        device = next(iter(state.values())).device
        self.problem, self.first = problem, 0
        unknown = torch.compiler.is_compiling() or device.type == "meta"
        self.rule = None if unknown else problem.stop_when
        self.blind = unknown or (self.rule is None and device.type != "cpu")
        self.asks = self.blind and not unknown and problem.tol > 0
        self.active = torch.ones(batch_size(state), dtype=torch.bool, device=device)
        self.alone = device.type == "cpu" and not self.blind and len(self.active) == 1
        self.size_of: Measure = large_norm if self.blind else lone_norm if self.alone else norm
        self.dtypes = {name: torch.promote_types(z.dtype, torch.float32) for name, z in state.items()}
        """Those of the norms."""
        self.steps = torch.full_like(self.active, problem.steps, dtype=torch.long)
        self.stop = torch.full_like(self.active, Stop.BUDGET.code, dtype=torch.long)
        self.everyone, self.done = not self.blind, False
        self.took_part: list[Bool[Tensor, " B"]] = []
        self.gaps: list[Norms] = []
        with torch.no_grad():
            self.sizes = [self._first_sizes(state)]

    def of_rows(self, problem: Problem, rows: Int[Tensor, " R"], first: int) -> Ledger:
        """Who goes on from step `first`, in a batch of their own; what is known of them is not measured again."""
        part = copy.copy(self)
        part.problem, part.rule, part.first = problem, problem.stop_when, first
        part.active, part.steps, part.stop = (x[rows] for x in (self.active, self.steps, self.stop))
        part.everyone, part.took_part, part.gaps = True, [], []
        part.sizes = [take_rows(self.sizes[-1], rows)]
        return part

    def judge(self, k: int, move: State, proposal: State) -> Bool[Tensor, " B"] | None:
        """Measure step k. None: every sample takes the proposal; otherwise the rows that do."""
        gap = self._norms(move, self.size_of)
        if self.unsure:
            gap = self._look_closely(move, gap)
        size = self._norms(proposal, self.size_of)
        read = self._ask_about_residuals(k, gap)
        if self.everyone and read is None and self._unremarkable(gap, size):
            self._note(gap, size)
            return None

        if not self.blind:  # rare, so it may be exact: a norm overflows long before its entries do
            gap, size = self._norms(move, large_norm), self._norms(proposal, large_norm)
        gap, size, before = self._tensors(gap), self._tensors(size), self._tensors(self.sizes[-1])
        finite = all_finite(move, self.problem.masks) & all_finite(proposal, self.problem.masks)
        settled = self.active & finite & self._within(gap, before)
        diverged = self.active & ~finite
        going = self.active & ~(settled | diverged)
        self.stop = torch.where(settled, Stop.SETTLED.code, torch.where(diverged, Stop.DIVERGED.code, self.stop))
        self.steps = torch.where(settled | diverged, k, self.steps)
        if read is not None:
            going = self._leave(k, going & read, going)
        self._note(gap, {name: torch.where(going, size[name], old) for name, old in before.items()})
        self.active = going
        if not self.blind:
            self.everyone, self.done = bool(going.all()), not bool(going.any())
        elif self.asks and (k + 1) % SELDOM == 0:
            self.done = not bool(going.any())
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

    def _ask_about_residuals(self, k: int, gap: Norms) -> Bool[Tensor, " B"] | None:
        """The rows that a rule stops for the residuals of z(k); None without such a rule, and where there are none."""
        if self.rule is None or not self.rule.by_residual:
            return None
        masks, gap, size = self.problem.masks, self._tensors(gap), self._tensors(self.sizes[-1])
        read = self.rule(k, {name: relative(x, size[name], masks.get(name)) for name, x in gap.items()}, self.active)
        return read if bool((self.active & read).any()) else None

    def _leave(self, k: int, read: Bool[Tensor, " B"], going: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """Note who was read at z(k); the rows that go on."""
        self.stop = torch.where(read, Stop.READ.code, self.stop)
        self.steps = torch.where(read, k, self.steps)
        return going & ~read

    def close(self, state: State, kept: dict[int, State]) -> Trace:
        return Trace(state, {name: self._residuals(name) for name in state}, self.steps, self.stop, kept)

    def _note(self, gap: Norms, size: Norms) -> None:
        self.took_part.append(self.active)
        self.gaps.append(gap)
        self.sizes.append(size)

    def _first_sizes(self, state: State) -> Norms:
        """The plain norms are fast; where they do not tell, a closer look says whether they will."""
        sizes = self._norms(state, self.size_of)
        self.unsure = not self.blind and not self._between(sizes, math.inf)
        if self.unsure and any(bool(z.any()) for z in state.values()):  # 0 is 0 by any norm; the first move will tell
            sizes = self._norms(state, large_norm)
            self._choose_norm(sizes)
            self.unsure = any(bool((size == 0).any()) for size in sizes.values())
        return sizes

    def _look_closely(self, move: State, gap: Norms) -> Norms:
        """The norms of the first move from 0, which may be too small or too large for plain ones."""
        self.unsure = False
        if self._between(gap, LARGE):
            return gap
        self._choose_norm(self._norms(move, large_norm))
        return self._norms(move, self.size_of)

    def _choose_norm(self, exact: State) -> None:
        """Measure this whole run by large norms, if there is a sample that needs it; 0 is 0 by either."""
        sizes = torch.stack([*exact.values()])
        if not bool((sound(sizes) & (sizes < LARGE) | (sizes == 0)).all()):
            self.size_of = large_norm

    def _between(self, norms: Norms, most: float) -> bool:
        """Do the norms tell that no square in them vanished, and that none is `most` or larger?"""
        if self.alone:
            return all(SMALL < float(size) < most for size in norms.values())
        sizes = torch.stack([*norms.values()])
        return bool(((sizes > SMALL) & (sizes < most)).all())

    def _norms(self, state: State, size_of: Measure) -> Norms:
        masks = self.problem.masks
        return {name: size_of(x, masks.get(name)) for name, x in state.items()}

    def _tensors(self, norms: Norms) -> State:
        """Numbers as tensors of a batch of one."""
        if not self.alone:
            return norms
        return {
            name: x if isinstance(x, Tensor) else self.active.new_tensor([x], dtype=self.dtypes[name])
            for name, x in norms.items()
        }

    def _unremarkable(self, gap: Norms, size: Norms) -> bool:
        """Is everything finite, as far as the norms tell, and no sample settled?"""
        tol = self.problem.tol
        if self.alone:
            if tol > 0 and all(float(x) <= tol * float(self.sizes[-1][name]) for name, x in gap.items()):
                return False
            return math.isfinite(float(sum(gap.values()) + sum(size.values())))
        total = torch.stack([*gap.values(), *size.values()]).sum()
        if tol == 0:
            return math.isfinite(total)
        return bool(torch.isfinite(total) & ~self._within(gap, self.sizes[-1]).any())

    def _within(self, gap: State, size: State) -> Bool[Tensor, " B"]:
        """Is every modality at or below the tolerance? With tol = 0 no sample settles: all steps are taken."""
        tol = self.problem.tol
        if tol == 0:
            return torch.zeros_like(self.active)
        return torch.stack([gap[name] <= tol * size[name] for name in gap]).all(0)

    def _residuals(self, name: str) -> Float[Tensor, "K B"]:
        if not self.gaps:  # a rule stopped everybody before a step was measured
            first = self._tensors(self.sizes[0])[name]
            return torch.full_like(first, torch.nan).repeat(self.problem.steps, 1)
        rows = self._ratios(name)
        if not self.everyone:
            rows = torch.where(torch.stack(self.took_part), rows, torch.nan)
        missing = self.problem.steps - self.first - len(rows)
        padding = (0, 0, self.first, missing)
        return torch.nn.functional.pad(rows, padding, value=torch.nan) if any(padding) else rows

    def _ratios(self, name: str) -> Float[Tensor, "K B"]:
        mask = self.problem.masks.get(name)
        if self.alone and mask is None:
            pairs = ((float(gap[name]), float(size[name])) for gap, size in zip(self.gaps, self.sizes, strict=False))
            return torch.tensor([[_ratio(gap, size)] for gap, size in pairs], dtype=self.dtypes[name])
        gap = torch.stack([self._tensors(row)[name] for row in self.gaps])
        return relative(gap, torch.stack([self._tensors(row)[name] for row in self.sizes[:-1]]), mask)


def _ratio(gap: float, size: float) -> float:
    """As `relative`, of two numbers: a quotient of float32 is the same to the bit when it is rounded from float64."""
    return 0.0 if gap == 0 else gap / size if size else gap * math.inf
