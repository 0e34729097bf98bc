"""Maps and batches that the tests of the objectives share."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from models.zoo import build, features_for, ragged_masks
from torch import Tensor

import meq
from meq.objectives import CrossFloor, Evaluation, JacobianRange, Loss, Objective, ResidualCorrection

SEEDS = torch.tensor([11, 7, 2**40 + 3, 5])
TARGET = torch.tensor([0, 2, 1, 2])
PENALTIES = (
    JacobianRange(low=1.2, high=1.3, weight=0.5),  # bounds that bite, or there would be no gradient to check
    ResidualCorrection(weight=0.3),
    CrossFloor(0.9, weight=0.2),
)
FULL = Objective(task="classes", penalties=PENALTIES)


class Scaled(meq.Operator):
    """T(z) = c z, with a factor per entry: the identity for c = 1."""

    def __init__(self, **factors: Tensor | float) -> None:
        super().__init__()
        self.factors = factors

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return dict(inputs)

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        return {name: self.factors.get(name, 1.0) * z for name, z in state.items()}


class Constant(Scaled):
    """T(z) = x, whatever z."""

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        return dict(inputs)


def tokens(batch: int = 3) -> dict[str, Tensor]:
    return {"image": torch.randn(batch, 4, 5).double(), "text": torch.randn(batch, 3, 2).double()}


def evaluated(operator: meq.Operator, inputs: Any, seeds: Tensor | None = None, **options: Any) -> Evaluation:
    solution = meq.solve(operator, inputs, **{"steps": 2, "tol": 0, **options})
    return Evaluation.at(operator, solution, seeds=seeds)


def outcome(operator: meq.Operator, inputs: Any, objective: Objective, **options: Any) -> Loss:
    """The objective on a bare operator whose first modality's mean is the one score."""
    solution = meq.solve(operator, inputs, **options)
    logits = next(iter(solution.state.values())).flatten(1).mean(1, keepdim=True)
    output = SimpleNamespace(logits=logits, solution=solution)
    return objective(SimpleNamespace(operator=operator), output, torch.zeros(len(logits)))


def small_model(name: str = "learned damping", **options: Any) -> meq.FusionModel:
    return build(name, **{"steps": 3, "tol": 0, **options})


def loss_of(model: meq.FusionModel, objective: Objective = FULL, *, seeds: Tensor | None = SEEDS) -> Loss:
    """A batch with padding, where one sample lacks its text; of answers per token, every token has the same."""
    output, target = model(features_for(model), ragged_masks(model), seeds=seeds), TARGET
    if model.head_kind == "tokens":
        objective = replace(objective, task="tokens")
        target = TARGET[:, None].expand(output.answered.shape)
    return objective(model, output, target, seeds=seeds)


def gradients(model: meq.FusionModel, objective: Objective = FULL) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss_of(model, objective).total.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
