"""Models whose every state is known in closed form, for instruments that take a model."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from problems import Affine
from torch import Tensor, nn

import meq

SHAPES = {"image": (3, 4), "text": (2, 4)}


class Linear(nn.Module):
    """z <- z + step (J z + x - z) from zero, read as W [mean of image tokens; mean of text tokens] + b.

    z(k) = step sum_{i < k} M^i x with M = (1 - step) I + step J.
    """

    head_kind = "classes"
    solver = None

    def __init__(self, jacobian: Tensor, weights: Tensor, shapes: dict[str, tuple[int, ...]], steps: int = 5) -> None:
        super().__init__()
        self.operator = Affine(jacobian, shapes)
        self.weights = nn.Parameter(weights)
        self.dropout = nn.Dropout(0.5)
        self.steps, self.step = steps, 0.5

    def damped(self) -> meq.Damped:
        return meq.Damped(step=self.step)

    def forward(self, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None) -> SimpleNamespace:
        solution = meq.solve(self.operator, dict(features), solver=self.damped(), steps=self.steps, tol=0.0)
        return SimpleNamespace(logits=self.read(solution.state, {}), solution=solution)

    def read(self, state: meq.State, masks: Mapping[str, Tensor]) -> Tensor:
        pooled = torch.cat([state[name].mean(1) for name in self.operator.shapes], dim=1)
        return self.dropout(pooled @ self.weights.T)

    def gather(self, k: int) -> Tensor:
        """G with z(k) = G x."""
        eye = torch.eye(len(self.operator.jacobian), dtype=torch.float64)
        move = (1 - self.step) * eye + self.step * self.operator.jacobian.detach()
        total, power = torch.zeros_like(eye), eye
        for _ in range(k):
            total, power = total + power, move @ power
        return self.step * total

    def state(self, k: int, features: Mapping[str, Tensor]) -> meq.State:
        return self.operator.split(self.operator.flat(dict(features)) @ self.gather(k).T)


def linear(radius: float = 0.8, classes: int = 3) -> Linear:
    generator = torch.Generator().manual_seed(5)
    matrix = torch.randn(20, 20, generator=generator, dtype=torch.float64)
    matrix = matrix * (radius / torch.linalg.eigvals(matrix).abs().max())
    weights = torch.randn(classes, 8, generator=generator, dtype=torch.float64)
    return Linear(matrix, weights, SHAPES).eval()


def tokens(batch: int = 3, shapes: Mapping[str, tuple[int, ...]] = SHAPES, seed: int = 6) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(batch, *shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }


def relay() -> Linear:
    """Plain steps in which audio token 1 is copied to image token 2, that to text token 0, and only text is read."""
    shapes = {"audio": (2, 1), "image": (3, 1), "text": (2, 1)}
    jacobian = torch.zeros(7, 7, dtype=torch.float64)
    jacobian[4, 1] = jacobian[5, 4] = 1.0
    model = Linear(jacobian, torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 1.0]], dtype=torch.float64), shapes)
    model.step = 1.0
    return model.eval()


def batch_of(features: Mapping[str, Tensor], target: Tensor | None = None, **masks: Tensor) -> SimpleNamespace:
    return SimpleNamespace(features=features, masks=masks, target=target)
