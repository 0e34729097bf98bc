"""Derivatives of an operator at a solution: products in both directions, never a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from meq.analysis.sources import Sources
from meq.core.operator import evaluate
from meq.core.solution import Solution
from meq.core.state import Masks, State, detach, per_sample, take_rows


class Derivative:
    """D = d outputs / d variables, from one graph that is walked once per product; every sample has its own D.

    `push` gives D v and `pull` gives D^T u. Entries that a mask hides are zero on the way in and on the way out.
    """

    def __init__(self, outputs: State, variables: State, output_masks: Masks, variable_masks: Masks) -> None:
        self.outputs, self.variables = outputs, variables
        self.output_masks, self.variable_masks = output_masks, variable_masks
        self.products = 0
        self._cotangents: State | None = None
        self._pulled: State = {}

    def pull(self, u: State) -> State:
        """D^T u; modalities that `u` leaves out count as zero."""
        self.products += 1
        return self._pull(_hidden_to_zero(u, self.output_masks), create_graph=False)

    def push(self, v: State) -> State:
        """D v = d <D^T u, v> / du, since D^T u is linear in u: two walks backwards make one forwards."""
        self.products += 1
        if self._cotangents is None:
            self._cotangents = {name: torch.zeros_like(x, requires_grad=True) for name, x in self.outputs.items()}
            self._pulled = self._pull(self._cotangents, create_graph=True)
        v = _hidden_to_zero(v, self.variable_masks)
        named = [name for name in v if self._pulled[name].requires_grad]
        if not named:
            return {name: torch.zeros_like(x) for name, x in self.outputs.items()}
        pushed = torch.autograd.grad(
            [self._pulled[name] for name in named],
            list(self._cotangents.values()),
            [v[name] for name in named],
            retain_graph=True,
            materialize_grads=True,
        )
        return _hidden_to_zero(dict(zip(self.outputs, pushed, strict=True)), self.output_masks)

    def _pull(self, u: State, *, create_graph: bool) -> State:
        named = [name for name in u if self.outputs[name].requires_grad]
        if not named:  # a constant map
            return {name: torch.zeros_like(x) for name, x in self.variables.items()}
        with torch.enable_grad():
            pulled = torch.autograd.grad(
                [self.outputs[name] for name in named],
                list(self.variables.values()),
                [u[name] for name in named],
                create_graph=create_graph,
                retain_graph=True,
                materialize_grads=True,
            )
        return _hidden_to_zero(dict(zip(self.variables, pulled, strict=True)), self.variable_masks)


def jacobian(operator: Any, solution: Solution) -> Derivative:
    """J = dT/dz of the undamped map at the read state."""
    state = _variables(solution.state)
    return Derivative(_image(operator, state, solution.inputs), state, solution.masks, solution.masks)


def source_jacobian(operator: Any, solution: Solution, sources: Sources) -> Derivative:
    """dT/du at the read state, u what the modalities bring in."""
    values = _variables(sources.values)
    image = _image(operator, detach(solution.state), lambda: sources.rebuild(values))
    return Derivative(image, values, solution.masks, sources.masks)


def one_sample(solution: Solution, row: int) -> Solution:
    """The solution of a single sample, as a batch of one, without its graph."""
    return some_samples(solution, [row])


def some_samples(solution: Solution, chosen: Sequence[int]) -> Solution:
    """The solution of the given samples, without its graph."""
    rows = torch.tensor(list(chosen), dtype=torch.long, device=solution.steps.device)
    solution = solution.detach()
    return Solution(
        state=take_rows(solution.state, rows),
        residuals={name: each[:, rows] for name, each in solution.residuals.items()},
        steps=solution.steps[rows],
        stop_codes=solution.stop_codes[rows],
        inputs=take_rows(solution.inputs, rows),
        masks=take_rows(dict(solution.masks), rows),
        operator=solution.operator,
        solver=solution.solver,
    )


def _variables(state: State) -> State:
    if torch.is_inference_mode_enabled():
        raise RuntimeError("the analysis differentiates T, which inference_mode forbids: use torch.no_grad()")
    return {name: x.detach().clone().requires_grad_() for name, x in state.items()}


def _image(operator: Any, state: State, inputs: Any) -> State:
    """T(z) with a graph that can be differentiated twice, which fused attention's cannot."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        return evaluate(operator, state, inputs() if callable(inputs) else inputs)


def _hidden_to_zero(state: State, masks: Masks) -> State:
    return {name: x.masked_fill(~per_sample(masks[name], x), 0) if name in masks else x for name, x in state.items()}
