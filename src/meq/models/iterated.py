"""What every model that iterates has in common: a coupling, a budget, a damping step, a way of taking gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from meq.core.backward import Backward, Unrolled
from meq.core.operator import Operator
from meq.core.options import nearest
from meq.core.solution import Solution
from meq.core.solve import solve
from meq.core.solvers import Damped, Solver
from meq.core.state import State
from meq.models.admit import Features, TokenMasks
from meq.models.base import Fused, FusionModel

Context = dict[str, Any]
"""What stays the same along the iteration, every tensor batch-first: features, injections, keys' and dropout masks."""


class PreparedOperator(Operator):
    """A map whose inputs are a `Context`, made once per solve from a batch's features."""

    @abstractmethod
    def prepare(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> Context:
        """What does not change along the iteration is computed here, once."""

    @abstractmethod
    def injections(self, features: Features, masks: TokenMasks) -> State:
        """f(x), by state: the part of `prepare` that depends on the values of the features."""

    def injected_anew(self, inputs: Context) -> Context:
        """The same context with f(x) computed again from its features, for who moves the features or the weights."""
        return {**inputs, "injection": self.injections(inputs["features"], inputs["feature_masks"])}

    @abstractmethod
    def state_masks(self, masks: TokenMasks) -> dict[str, Tensor]:
        """The features' masks in the shape of the states."""

    def sources(self, inputs: Context) -> State:
        """The injections f(x): what the modalities bring into the iteration."""
        return dict(inputs["injection"])

    def with_sources(self, inputs: Context, sources: State) -> Context:
        """The same context with other injections."""
        return {**inputs, "injection": {**inputs["injection"], **sources}}

    @abstractmethod
    def openness(self, state: State, inputs: Context) -> State:
        """The gates' values at a state; empty without gates."""

    @abstractmethod
    def attention(self, state: State, inputs: Context) -> dict[str, dict[str, Tensor]]:
        """[a][b]: how a's tokens read b's at a state (B H N_a N_b), S's part weighed alpha and M's 1 - alpha.

        Over all b a row sums to one, and to S's share alone where a sample has nobody else to read. An error for
        mixers other than attention.
        """


class Iterated(FusionModel):
    """A fusion model whose states are read at step K of an iteration.

    `solver` and `backward` may be replaced at any time by other objects of `meq`: they are ways to run the model, not
    part of it, and are not saved.
    """

    coupling: PreparedOperator

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None,
        dim: int,
        *,
        steps: int,
        tol: float,
        damping: float | str,
        **rest: Any,
    ) -> None:
        super().__init__(widths, classes, dim, **rest)
        self.steps, self.tol = steps, tol
        self.backward: Backward = Unrolled()
        self.solver: Solver | None = None
        """What replaces the damped iteration, if anything."""
        self.damping = nn.Parameter(torch.tensor(0.5)) if damping == "learned" else _check_damping(damping)
        """The step, or the logit d of a learned one: sigmoid(d) starts at 0.62, as in the paper."""

    @property
    def operator(self) -> PreparedOperator:
        return self.coupling

    def fuse(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> Fused:
        solution = self.settle(self.coupling, features, masks, seeds)
        return Fused(solution.state, solution.masks, solution)

    def settle(
        self, coupling: PreparedOperator, features: Features, masks: TokenMasks, seeds: Tensor | None
    ) -> Solution:
        """Solve one coupling with this model's budget, solver and backward."""
        return solve(
            coupling,
            coupling.prepare(features, masks, seeds),
            solver=self.solver or self.damped(),
            steps=self.steps,
            tol=self.tol,
            backward=self.backward,
            masks=coupling.state_masks(masks),
        )

    def damped(self) -> Damped:
        """The damped iteration, its step constant or learned as sigmoid(d)."""
        return Damped(step=torch.sigmoid(self.damping) if isinstance(self.damping, Tensor) else self.damping)

    def gates(self, solution: Solution) -> dict[str, Float[Tensor, " B"]]:
        with torch.no_grad():
            opened = solution.operator.openness(solution.state, solution.inputs)
        return {name: _mean_over_real(g, solution.masks.get(name)) for name, g in opened.items()}


def _mean_over_real(gate: Tensor, mask: Tensor | None) -> Float[Tensor, " B"]:
    """NaN where the modality is absent."""
    tokens = gate.mean(-1)
    if mask is None:
        return tokens.flatten(1).mean(1) if tokens.ndim > 1 else tokens
    return torch.where(mask, tokens, torch.nan).reshape(len(tokens), -1).nanmean(1)


def _check_damping(damping: float | str) -> float:
    if isinstance(damping, str):
        raise ValueError(f"damping is a number or 'learned', got {damping!r}: {nearest(damping, ['learned'])}")
    return damping
