"""Models that iterate well, and models that fail to in one known way each."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import meq
from meq.core import Operator

DIM, CLASSES, READ = 4, 3, 10


class Approach(Operator):
    """v <- v + rate (x - v) from -x: the answer turns right as v passes 0, after ln 2 / -ln(1 - rate) steps."""

    def start(self, inputs: Mapping[str, Tensor]) -> meq.State:
        return {"v": -inputs["x"]}

    def forward(self, state: meq.State, inputs: Mapping[str, Tensor]) -> meq.State:
        return {"v": state["v"] + inputs["rate"] * (inputs["x"] - state["v"])}


class Still(Operator):
    """The identity: what is read is where it starts."""

    def start(self, inputs: Mapping[str, Tensor]) -> meq.State:
        return {"v": inputs["x"].clone()}

    def forward(self, state: meq.State, inputs: Mapping[str, Tensor]) -> meq.State:
        return dict(state)


class Jump(Operator):
    """T(v) = x from -x: one step does everything."""

    def start(self, inputs: Mapping[str, Tensor]) -> meq.State:
        return {"v": -inputs["x"]}

    def forward(self, state: meq.State, inputs: Mapping[str, Tensor]) -> meq.State:
        return {"v": inputs["x"].clone()}


class Remembering(Operator):
    """v approaches u, which never forgets what it started from."""

    def start(self, inputs: Mapping[str, Tensor]) -> meq.State:
        return {"u": inputs["x"].clone(), "v": -inputs["x"]}

    def forward(self, state: meq.State, inputs: Mapping[str, Tensor]) -> meq.State:
        return {"u": state["u"], "v": state["v"] + inputs["rate"] * (state["u"] - state["v"])}


class Drifting(Approach):
    """As Approach, and beside it a small instability w that has grown to its full size between K and 2 K."""

    def start(self, inputs: Mapping[str, Tensor]) -> meq.State:
        return {**super().start(inputs), "w": torch.full_like(inputs["x"][:, :1], 1e-3)}

    def forward(self, state: meq.State, inputs: Mapping[str, Tensor]) -> meq.State:
        return {**super().forward(state, inputs), "w": torch.tanh(1.5 * state["w"])}


class Toy(nn.Module):
    """One of the above as a model: logits are the first entries of v; with w its sign turns as w grows."""

    solver = None

    def __init__(self, operator: Operator, head: str = "classes", steps: int = READ) -> None:
        super().__init__()
        self.operator, self.head_kind, self.steps = operator, head, steps

    def damped(self) -> meq.Damped:
        return meq.Damped(step=1.0)

    def forward(self, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None) -> SimpleNamespace:
        solution = meq.solve(
            self.operator, dict(features), solver=self.damped(), steps=self.steps, tol=0.0, masks=dict(masks or {})
        )
        return SimpleNamespace(logits=self.read(solution.state, {}), solution=solution)

    def read(self, state: meq.State, masks: Mapping[str, Tensor]) -> Tensor:
        value = state["v"] * (1 - 4 * state["w"]) if "w" in state else state["v"]
        return value[..., :1] if self.head_kind == "score" else value[..., :CLASSES]


def problems(
    count: int = 200,
    *,
    tokens: int | None = None,
    slowest: float = 0.03,
    rate: float | None = None,
    mislabelled: float = 0.0,
    stated: bool = True,
    size: int = 100,
) -> list[SimpleNamespace]:
    """Batches whose samples, or tokens, have rates from 0.9 down to `slowest`, or all the same one.

    The slowest ones are still wrong at K, and far from rest; a mislabelled one is wrong at whatever residual. With
    tokens, the last of each odd sample is padding and the first of every third is not asked.
    """
    generator = torch.Generator().manual_seed(4)
    batches = []
    for first in range(0, count, size):
        shape = (min(size, count - first), *(() if tokens is None else (tokens,)))
        x = torch.randn(*shape, DIM, generator=generator, dtype=torch.float64)
        spread = slowest * (0.9 / slowest) ** torch.rand(shape, generator=generator, dtype=torch.float64)
        rates = spread if rate is None else torch.full_like(spread, rate)
        target = x[..., :CLASSES].argmax(-1)
        turned = (target + 1) % CLASSES
        target = torch.where(torch.rand(shape, generator=generator) < mislabelled, turned, target)
        masks = {}
        if tokens is not None:
            masks["v"] = torch.ones(shape, dtype=torch.bool)
            masks["v"][1::2, -1] = False
            target[1::2, -1] = -1
            target[::3, 0] = -1
        features = {"x": x, "rate": rates[..., None]}
        difficulty = -rates if stated else None
        batches.append(SimpleNamespace(features=features, masks=masks, target=target, difficulty=difficulty))
    return batches
