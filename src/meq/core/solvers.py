"""Damped, Anderson, Broyden: how one step is taken. The loop is elsewhere (`iteration.py`) and serves them all.

A solver is given z(k) and the move r = T(z(k)) - z(k) and proposes z(k+1). Everything is per sample: no sample's step
depends on who shares its batch. <.,.> below sums over the modalities, which are never concatenated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from meq.core.options import checked_options
from meq.core.state import Masks, State, dot, per_sample

Memory = Any


class Solver(ABC):
    """One step towards a fixed point."""

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
    """z <- z + step (T(z) - z). The step changes the path, never the fixed point."""

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
    state: State
    move: State
    slides: list[State]  # dz_i + step dr_i
    turns: list[State]  # dr_i
    gram: Float[Tensor, "B M M"]  # <dr_i, dr_j>


@checked_options
@dataclass(frozen=True, kw_only=True)
class Anderson(Solver):
    """z <- z + step r - sum_i c_i (dz_i + step dr_i), where c minimises |r - sum_i c_i dr_i|.

    dz_i and dr_i are the differences between the last `history` + 1 states and moves.
    """

    history: int = 5
    """How many differences are kept; memory grows with it, not with the number of steps."""
    step: float = 1.0
    """The weight of the move in the mixed state; 1 is the usual choice."""

    def __post_init__(self) -> None:
        _check_history(self.history, "Anderson")
        _check_step(self.step, "Anderson")

    def advance(self, state: State, move: State, memory: Memory, masks: Masks) -> tuple[State, Memory]:
        plain = {name: torch.add(z, move[name], alpha=self.step) for name, z in state.items()}
        if memory is None:
            first = next(iter(move.values()))
            gram = first.new_zeros(first.shape[0], 0, 0, dtype=torch.promote_types(first.dtype, torch.float32))
            return plain, _AndersonMemory(state, move, [], [], gram)

        turn = _minus(move, memory.move)
        moved = _minus(state, memory.state)
        slides = [*memory.slides, {name: torch.add(moved[name], turn[name], alpha=self.step) for name in turn}]
        turns = [*memory.turns, turn]
        gram = memory.gram
        if len(turns) > self.history:
            slides, turns, gram = slides[1:], turns[1:], gram[:, 1:, 1:]

        gram = _grow(gram, torch.stack([dot(old, turn, masks) for old in turns], -1))
        weights = _least_squares(gram, torch.stack([dot(old, move, masks) for old in turns], -1))
        return _combine(plain, -weights, slides), _AndersonMemory(state, move, slides, turns, gram)


class _BroydenMemory(NamedTuple):
    taken: State  # s, the last step
    left: list[State]  # u_i
    right: list[State]  # v_i


@checked_options
@dataclass(frozen=True, kw_only=True)
class Broyden(Solver):
    """z <- z - H r, where H approximates the inverse Jacobian of r by good Broyden updates of rank one.

    H = -step I + sum_i u_i <v_i, .>. With s the last step and w = H r(new), the update needs no second product with H:
    H (r(new) - r(old)) = w + s, because the old step was s = -H r(old).
    """

    history: int = 10
    """How many updates are kept. When they are full, H starts again from -step I."""
    step: float = 1.0
    """The first step's length, in units of the move."""

    def __post_init__(self) -> None:
        _check_history(self.history, "Broyden")
        _check_step(self.step, "Broyden")

    def advance(self, state: State, move: State, memory: Memory, masks: Masks) -> tuple[State, Memory]:
        if memory is None or len(memory.left) == self.history:
            taken = {name: self.step * r for name, r in move.items()}
            return _plus(state, taken), _BroydenMemory(taken, [], [])

        taken, left, right = memory
        w = self._product(move, right, left, masks)  # H r
        v = self._product(taken, left, right, masks)  # s^T H
        change = dot(taken, _plus(w, taken), masks)  # s^T H dr
        # Where s^T H dr vanishes the update does not exist (or the sample has stopped moving): H stays as it is.
        size = (dot(taken, taken, masks) * dot(w, w, masks)).sqrt()
        usable = change.abs() > torch.finfo(change.dtype).eps * size
        inverse = torch.where(usable, 1 / torch.where(usable, change, 1), 0)
        factor = dot(v, move, masks) * inverse
        taken = {name: _scaled(factor - 1, x) for name, x in w.items()}
        u = {name: _scaled(-inverse, x) for name, x in w.items()}
        return _plus(state, taken), _BroydenMemory(taken, [*left, u], [*right, v])

    def _product(self, x: State, inner: list[State], outer: list[State], masks: Masks) -> State:
        """-step x + sum_i outer_i <inner_i, x>"""
        plain = {name: -self.step * tensor for name, tensor in x.items()}
        if not inner:
            return plain
        return _combine(plain, torch.stack([dot(each, x, masks) for each in inner], -1), outer)


def _combine(base: State, weights: Float[Tensor, "B M"], parts: list[State]) -> State:
    """base + sum_i weights_i parts_i, in the precision of the weights, returned in that of the base."""
    total = dict(base)
    for weight, part in zip(weights.unbind(-1), parts, strict=True):
        for name, x in part.items():
            total[name] = torch.addcmul(total[name], per_sample(weight, x), x)
    return {name: x.to(base[name].dtype) for name, x in total.items()}


def _grow(gram: Float[Tensor, "B M M"], row: Float[Tensor, "B M1"]) -> Float[Tensor, "B M1 M1"]:
    """Append the products with the newest difference as last row and column."""
    wide = torch.cat([gram, row[:, :-1, None]], dim=2)
    return torch.cat([wide, row[:, None, :]], dim=1)


def _least_squares(gram: Float[Tensor, "B M M"], right: Float[Tensor, "B M"]) -> Float[Tensor, "B M"]:
    """Solve (G + tiny I) c = right. A sample whose differences all vanish gets c = 0: a plain step."""
    scale = gram.diagonal(dim1=1, dim2=2).amax(1)[:, None]
    moving = scale > 0
    scale = torch.where(moving, scale, 1)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    ridge = torch.where(moving, 10 * torch.finfo(gram.dtype).eps, 1)[..., None] * eye
    with torch.autocast(gram.device.type, enabled=False):
        # solve_ex: one sample's singular matrix must not raise for its whole batch; the loop sees what is not finite
        return torch.linalg.solve_ex(gram / scale[..., None] + ridge, right / scale)[0]


def _minus(a: State, b: State) -> State:
    return {name: x - b[name] for name, x in a.items()}


def _plus(a: State, b: State) -> State:
    return {name: x + b[name] for name, x in a.items()}


def _scaled(factor: Float[Tensor, " B"], x: Tensor) -> Tensor:
    return (per_sample(factor, x) * x).to(x.dtype)


def _check_step(step: float, label: str) -> None:
    if not (math.isfinite(step) and step > 0):
        raise ValueError(f"{label}(step) must be a positive number, got {step!r}")


def _check_history(history: int, label: str) -> None:
    if history < 1:
        raise ValueError(f"{label}(history) must be at least 1, got {history!r}")
