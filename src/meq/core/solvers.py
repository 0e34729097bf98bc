"""Damped, Anderson, Broyden: how one step is taken. The loop is elsewhere (`iteration.py`) and serves them all.

A solver is given z(k) and the move r = T(z(k)) - z(k) and proposes z(k+1). Everything is per sample: no sample's step
depends on who shares its batch. <.,.> below sums over the modalities, which are never concatenated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from meq.core.state import Masks, State, difference, dots, large_norm, magnitude, norm, per_sample, working_dtype
from meq.options import checked_options, real_number, whole_number, wrong_object

Memory = Any
Unit = Tensor | None
"""A factor per sample that keeps products of vectors within the dtype; None stands for 1."""


class Solver(ABC):
    """One step towards a fixed point.

    >>> class Plain(meq.Solver):
    ...     def advance(self, state, move, memory, masks):
    ...         return {name: z + move[name] for name, z in state.items()}, None
    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2, solver=Plain())
    """

    rows_leave: ClassVar[bool] = False
    """May samples that are done leave the batch? True if all that is remembered is dicts, lists and tuples of tensors,
    every one batch-first: then the rows of those that stay are taken from it."""

    @abstractmethod
    def advance(self, state: State, move: State, memory: Memory, masks: Masks) -> tuple[State, Memory]:
        """The next state, and what the solver wants to remember; `memory` is None at the first step."""

    @property
    def learned(self) -> bool:
        """Does the path (never the fixed point) depend on a tensor with gradient?"""
        return False


@checked_options
@dataclass(frozen=True, eq=False)
class Damped(Solver):
    """z <- z + step (T(z) - z). The step changes the path, never the fixed point.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model.solver = meq.Damped(step=0.8)
    """

    rows_leave: ClassVar[bool] = True

    step: Tensor | float = 0.5
    """Below 1 damps, 1 is the plain iteration. A tensor of one number may carry gradient: a learned damping."""

    def __post_init__(self) -> None:
        if not isinstance(self.step, Tensor):
            _check_step(self.step, "Damped")
        elif self.step.numel() != 1:
            raise ValueError(f"Damped(step) must be one number, got a tensor of shape {tuple(self.step.shape)}")

    def advance(self, state: State, move: State, memory: Memory, masks: Masks) -> tuple[State, Memory]:
        if isinstance(self.step, Tensor):
            step = self.step.reshape(())
            return {name: z + step.to(z) * move[name] for name, z in state.items()}, None
        return {name: torch.add(z, move[name], alpha=self.step) for name, z in state.items()}, None

    @property
    def learned(self) -> bool:
        return isinstance(self.step, Tensor) and self.step.requires_grad


class _AndersonMemory(NamedTuple):
    mixed: State  # z + step r
    move: State  # r
    slides: list[State]  # the differences of z + step r, older minus newer
    turns: list[State]  # dr_i
    gram: Float[Tensor, "B M M"]  # <dr_i, dr_j>, with a ridge
    right: Float[Tensor, "B M"]  # <dr_i, r>
    unit: Unit  # by which the moves are scaled here, and all that is made of them


@checked_options
@dataclass(frozen=True, kw_only=True)
class Anderson(Solver):
    """z <- z + step r - sum_i c_i (dz_i + step dr_i), where c minimises |r - sum_i c_i dr_i|.

    dz_i and dr_i are the differences between the last `history` + 1 states and moves.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model.solver = meq.Anderson(history=5)
    """

    rows_leave: ClassVar[bool] = True

    history: int = 3
    """How many differences are kept; memory and time per step grow with it, not with the number of steps."""
    step: float = 1.0
    """The weight of the move in the mixed state; 1 is the usual choice."""

    def __post_init__(self) -> None:
        _check_history(self.history, "Anderson")
        _check_step(self.step, "Anderson")

    def advance(self, state: State, move: State, memory: Memory, masks: Masks) -> tuple[State, Memory]:
        mixed = {name: torch.add(z, move[name], alpha=self.step) for name, z in state.items()}
        if memory is None:
            first = next(iter(move.values()))
            gram = first.new_zeros(first.shape[0], 0, 0, dtype=torch.promote_types(first.dtype, torch.float32))
            unit = _unit(state, move, masks)
            return mixed, _AndersonMemory(mixed, _times(unit, move), [], [], gram, gram.sum(2), unit)

        move = _times(memory.unit, move)
        turn = difference(move, memory.move)
        slides, turns = [*memory.slides, difference(memory.mixed, mixed)], [*memory.turns, turn]
        gram, right = memory.gram, memory.right
        if len(turns) > self.history:
            slides, turns, gram, right = slides[1:], turns[1:], gram[:, 1:, 1:], right[:, 1:]

        products = dots([*turns, move], turn, masks)
        row, newest = products[:, :-1], products[:, -1:]
        # <dr_i, r> moves on by <dr_i, dr>, which is at hand: half the products, and no less exact than the gram matrix
        right = torch.cat([right + row[:, :-1], newest], dim=1)
        gram = _grow(gram, row, ridge=_ridge(row[:, -1], state, masks, memory.unit))
        # solve_ex: one sample's singular matrix must not raise for its whole batch; the loop sees what is not finite
        weights = torch.linalg.solve_ex(gram, right)[0]
        memory = _AndersonMemory(mixed, move, slides, turns, gram, right, memory.unit)
        return _combine(mixed, weights, slides), memory


class _BroydenMemory(NamedTuple):
    taken: State  # s, the last step
    left: list[State]  # u_i
    right: list[State]  # v_i
    unit: Unit  # by which s, u and v are scaled


@checked_options
@dataclass(frozen=True, kw_only=True)
class Broyden(Solver):
    """z <- z - H r, where H approximates the inverse Jacobian of r by good Broyden updates of rank one.

    H = -step I + sum_i u_i <v_i, .>. With s = -H r(old) the last step and w = H r(new), H (r(new) - r(old)) = w + s. So
    the update is u = -w / <s, w + s> and v = H^T s, and the next step is |s|^2 u: no second product with H.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model.solver = meq.Broyden()
    """

    rows_leave: ClassVar[bool] = True

    history: int = 10
    """How many updates are kept. When they are full, H starts again from -step I."""
    step: float = 1.0
    """The first step's length, in units of the move."""

    def __post_init__(self) -> None:
        _check_history(self.history, "Broyden")
        _check_step(self.step, "Broyden")

    def advance(self, state: State, move: State, memory: Memory, masks: Masks) -> tuple[State, Memory]:
        if memory is None or len(memory.left) == self.history:
            unit = _unit(state, move, masks) if memory is None else memory.unit
            taken = {name: self.step * r for name, r in move.items()}
            return _plus(state, taken), _BroydenMemory(_times(unit, taken), [], [], unit)

        taken, left, right, unit = memory
        move = _times(unit, move)
        w = self._product(move, right, left, masks)
        v = self._product(taken, left, right, masks)
        length, overlap = dots([taken, w], taken, masks).unbind(-1)  # |s|^2, <s, w>
        change = length + overlap
        # Where <s, w + s> is lost in rounding (or the sample has stopped moving) H stays as it is.
        limit = 10 * torch.finfo(change.dtype).eps * (length + overlap.abs()) + _rounding(state, masks, unit)
        usable = change.abs() > limit.clamp_min(torch.finfo(change.dtype).tiny)
        inverse = torch.where(usable, 1 / torch.where(usable, change, 1), 0)
        stretch = torch.where(usable, length * inverse, 1)
        u = {name: _scaled(-inverse, x) for name, x in w.items()}
        taken = {name: _scaled(-stretch, x) for name, x in w.items()}
        step = taken if unit is None else _times(1 / unit, taken)
        return _plus(state, step), _BroydenMemory(taken, [*left, u], [*right, v], unit)

    def _product(self, x: State, inner: list[State], outer: list[State], masks: Masks) -> State:
        """-step x + sum_i outer_i <inner_i, x>"""
        plain = {name: -self.step * tensor for name, tensor in x.items()}
        if not inner:
            return plain
        return _combine(plain, dots(inner, x, masks), outer)


def check_solver(value: Any, label: str = "solver") -> Solver:
    """The value, if it is a solver; names and classes are answered with what to write instead."""
    if not isinstance(value, Solver):
        known = {each.__name__.lower(): f"meq.{each.__name__}()" for each in (Damped, Anderson, Broyden)}
        raise TypeError(wrong_object(label, value, known, "meq.Anderson()"))
    return value


def _combine(base: State, weights: Float[Tensor, "B M"], parts: list[State]) -> State:
    """base + sum_i weights_i parts_i, in the precision of the weights, returned in that of the base."""
    total = {}
    for name, x in base.items():
        first, *rest = zip(per_sample(weights.mT, x[None]).unbind(), [part[name] for part in parts], strict=True)
        sum_ = torch.addcmul(x, *first)
        for weight, part in rest:
            sum_.addcmul_(weight, part)  # in place: fresh memory would cost more than the arithmetic
        total[name] = sum_.to(x.dtype)
    return total


def _grow(
    gram: Float[Tensor, "B M M"], row: Float[Tensor, "B M1"], *, ridge: Float[Tensor, " B"]
) -> Float[Tensor, "B M1 M1"]:
    """Append the products with the newest difference as last row and column, the ridge in the corner."""
    products = row[:, :-1]
    wide = torch.cat([gram, products[:, :, None]], dim=2)
    return torch.cat([wide, torch.cat([products, row[:, -1:] + ridge[:, None]], dim=1)[:, None]], dim=1)


def _ridge(length: Float[Tensor, " B"], state: State, masks: Masks, unit: Unit) -> Float[Tensor, " B"]:
    """What to add to |dr|^2 so that a difference lost in rounding errors gets a weight near 0."""
    limits = torch.finfo(length.dtype)
    ridge = torch.add(_rounding(state, masks, unit), length, alpha=10 * limits.eps)
    return ridge + (length + ridge < limits.tiny)


def _rounding(state: State, masks: Masks, unit: Unit) -> Float[Tensor, " B"]:
    """(4 eps unit |z|)^2: about what rounding alone makes of |dr|^2.

    Below it a history tells noise, and its gradient, which divides by |dr|, nothing but noise: a solve that goes on at
    its equilibrium would spoil the gradient it already had.
    """
    size_of = norm if unit is None else large_norm
    errors = [4 * torch.finfo(working_dtype(z)).eps * size_of(z.detach(), masks.get(name)) for name, z in state.items()]
    return (torch.stack(errors) if unit is None else unit * torch.stack(errors)).square().sum(0)


def _unit(state: State, move: State, masks: Masks) -> Unit:
    """Per sample a power of two that brings its entries near 1, where their squares would overflow or vanish.

    Scaling by it is exact, so a sample's steps are the same at every magnitude. None where every sample is of a usual
    one, as nearly always; an accelerator is not asked, which would have to be waited for. Traced code does without.
    """
    device = next(iter(state.values())).device.type
    if torch.compiler.is_compiling() or device == "meta":
        return None
    parts = [(x.detach(), masks.get(name)) for tree in (state, move) for name, x in tree.items()]
    with torch.no_grad():
        if device == "cpu" and bool(_usual(torch.stack([norm(x, mask) for x, mask in parts])).all()):
            return None
        largest = torch.stack([magnitude(x, mask) for x, mask in parts]).amax(0)
        keep = _usual(largest) | (largest == 0) | ~torch.isfinite(largest)
        if device == "cpu" and bool(keep.all()):
            return None
        exponent = torch.frexp(largest).exponent.clamp(-126, 126)
        return torch.ldexp(torch.ones_like(largest), torch.where(keep, 0, -exponent))


def _usual(size: Tensor) -> Bool[Tensor, "*axes"]:
    """Squares of it, and of what rounding leaves of it, are safe in float32."""
    return (size > 1e-10) & (size < 1e14)


def _times(unit: Unit, state: State) -> State:
    return state if unit is None else {name: x * per_sample(unit, x).to(x.dtype) for name, x in state.items()}


def _plus(a: State, b: State) -> State:
    return {name: x + b[name] for name, x in a.items()}


def _scaled(factor: Float[Tensor, " B"], x: Tensor) -> Tensor:
    return (per_sample(factor, x) * x).to(x.dtype)


def _check_step(step: float, label: str) -> None:
    if real_number(f"{label}(step)", step, wanted="must be a positive number") <= 0:
        raise ValueError(f"{label}(step) must be a positive number, got {step!r}")


def _check_history(history: int, label: str) -> None:
    whole_number(f"{label}(history)", history)
