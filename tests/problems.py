"""Operators whose equilibria are known in closed form.

Each problem is affine per sample, T(z) = J z + b over the concatenated entries of its modalities, so that the exact
equilibrium is (I - J)^-1 b and every claim about solvers, gradients and spectra can be checked against linear algebra.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import meq


class Affine(meq.Operator):
    """T(z) = J z + b, with J shared by the samples and b their input; modalities are slices of one vector."""

    def __init__(self, jacobian: Tensor, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.jacobian = torch.nn.Parameter(jacobian)
        self.shapes = shapes
        self.calls = 0

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return {name: torch.zeros_like(x) for name, x in inputs.items()}

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        self.calls += 1
        return self.split(self.flat(state) @ self.jacobian.T + self.flat(inputs))

    def flat(self, state: meq.State) -> Tensor:
        return torch.cat([state[name].flatten(1) for name in self.shapes], dim=1)

    def split(self, flat: Tensor) -> meq.State:
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = flat.split(sizes, dim=1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def equilibrium(self, inputs: dict[str, Tensor]) -> meq.State:
        eye = torch.eye(len(self.jacobian), dtype=self.jacobian.dtype)
        return self.split(torch.linalg.solve(eye - self.jacobian, self.flat(inputs).T).T)

    @property
    def radius(self) -> float:
        return torch.linalg.eigvals(self.jacobian.detach()).abs().max().item()


@dataclass(frozen=True)
class Known:
    """A problem with its exact answer."""

    operator: Affine
    inputs: dict[str, Tensor]

    @property
    def equilibrium(self) -> meq.State:
        return self.operator.equilibrium(self.inputs)

    def error(self, state: meq.State) -> float:
        exact = self.operator.flat(self.equilibrium)
        return ((self.operator.flat(state) - exact).norm() / exact.norm()).item()


def known(jacobian: Tensor, shapes: dict[str, tuple[int, ...]], batch: int = 3, seed: int = 0) -> Known:
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        name: torch.randn(batch, *shape, generator=generator, dtype=torch.float64).to(jacobian.dtype)
        for name, shape in shapes.items()
    }
    return Known(Affine(jacobian, shapes), inputs)


def contraction(dtype: torch.dtype = torch.float64, radius: float = 0.8) -> Known:
    """Two token modalities, random coupling scaled to a given spectral radius."""
    shapes = {"image": (3, 4), "text": (2, 4)}
    matrix = torch.randn(20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = matrix * (radius / torch.linalg.eigvals(matrix).abs().max())
    return known(matrix.to(dtype), shapes)


def rotation(dtype: torch.dtype = torch.float64, scale: float = 0.9) -> Known:
    """a <- -scale b, b <- scale a: eigenvalues +- i scale, and a Rayleigh quotient of zero for every real vector."""
    eye, zero = torch.eye(6, dtype=dtype), torch.zeros(6, 6, dtype=dtype)
    matrix = torch.cat([torch.cat([zero, -scale * eye], 1), torch.cat([scale * eye, zero], 1)])
    return known(matrix, {"a": (6,), "b": (6,)})


def stiff(dtype: torch.dtype = torch.float64) -> Known:
    """One modality forgets at once, the other takes hundreds of plain steps."""
    matrix = torch.diag(torch.tensor([0.01, 0.02, 0.99, 0.97], dtype=dtype))
    matrix[0, 2], matrix[3, 1] = 0.5, 0.2
    return known(matrix, {"fast": (2,), "slow": (2,)})


def expansive(dtype: torch.dtype = torch.float64) -> Known:
    """Eigenvalues 3 and -2: the equilibrium exists, and no damped iteration comes near it."""
    matrix = torch.tensor([[3.0, 0.0, 0.4, 0.0], [0.0, 3.0, 0.0, 0.4], [0.0, 0.0, -2.0, 0.0], [0.0, 0.0, 0.0, -2.0]])
    return known(matrix.to(dtype), {"a": (2,), "b": (2,)})


def three_modalities(dtype: torch.dtype = torch.float64) -> Known:
    """Tokens, a vector and tokens of another width, all coupled."""
    shapes = {"image": (3, 2), "audio": (5,), "text": (2, 3)}
    matrix = torch.randn(17, 17, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return known((0.7 * matrix / torch.linalg.eigvals(matrix).abs().max()).to(dtype), shapes)


PROBLEMS = {
    "contraction": contraction,
    "rotation": rotation,
    "stiff": stiff,
    "expansive": expansive,
    "three_modalities": three_modalities,
}


class CoupledAttention(meq.Operator):
    """A small nonlinear coupled pair with masks: the shape of the real thing, small enough for finite differences."""

    def __init__(self, width: int = 4, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        shape = (6, width, width)
        weights = torch.randn(shape, generator=generator, dtype=torch.float64) / width**0.5
        self.weights = torch.nn.Parameter((0.6 * weights).to(dtype))

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return {name: torch.tanh(inputs[name]) for name in ("x", "y")}

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        return {
            "x": torch.tanh(inputs["x"] + self._read(state["x"], state["y"], inputs.get("y_mask"), self.weights[:3])),
            "y": torch.tanh(inputs["y"] + self._read(state["y"], state["x"], inputs.get("x_mask"), self.weights[3:])),
        }

    @staticmethod
    def _read(own: Tensor, other: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        scores = (own @ weights[0]) @ (other @ weights[1]).transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :], -torch.inf)
        return scores.softmax(-1) @ (other @ weights[2])


def attention_inputs(batch: int = 3, dtype: torch.dtype = torch.float64, seed: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(batch, 3, 4, generator=generator, dtype=torch.float64).to(dtype),
        "y": torch.randn(batch, 2, 4, generator=generator, dtype=torch.float64).to(dtype),
    }


class Cubing(meq.Operator):
    """a <- a^3 + b/8, b <- b/2 + scale: samples that start beyond 1 explode, the others settle."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.1))

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return {"a": inputs["a"], "b": torch.zeros_like(inputs["a"])}

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        return {"a": state["a"] ** 3 + state["b"] / 8, "b": state["b"] / 2 + self.scale}
