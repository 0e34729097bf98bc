"""What the penalties cost: a training step with each of them against a step of the task alone.

    python benchmarks/objective_cost.py

times forward, objective and backward (no optimiser, which would only dilute the difference) of one model in interleaved
rounds on one thread, and writes `benchmarks/results/objective_cost.json` in about six minutes. Expect an operator call
with its backward pass for the residual, and more than that for each probe, whose product is differentiated again.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import record
import torch
from torch import Tensor

import meq
from meq.objectives import CrossFloor, JacobianRange, Objective, Penalty, ResidualCorrection

STEPS = 10
CLASSES = 3

# bounds and floors out of reach, so that every term has a gradient to pass back
RANGE = {"low": 1.5, "high": 2.0}
ARMS: dict[str, tuple[Penalty, ...]] = {
    "task": (),
    "residual": (ResidualCorrection(),),
    "jacobian": (JacobianRange(**RANGE),),
    "both": (JacobianRange(**RANGE), ResidualCorrection()),
    "both, five probes": (JacobianRange(**RANGE, probes=5), ResidualCorrection()),
    "cross floor": (CrossFloor(1.0),),
    "all three": (JacobianRange(**RANGE), ResidualCorrection(), CrossFloor(1.0)),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    dim: int
    heads: int
    image: int
    text: int
    batch: int


SIZES = (
    Size(dim=128, heads=8, image=16, text=16, batch=32),
    Size(dim=256, heads=8, image=50, text=32, batch=8),
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    features: dict[str, Tensor]
    target: Tensor
    seeds: Tensor


def prepared(size: Size) -> tuple[meq.MutualEquilibrium, Batch]:
    torch.manual_seed(0)
    widths = {"image": size.dim, "text": size.dim}
    model = meq.MutualEquilibrium(widths, CLASSES, size.dim, heads=size.heads, steps=STEPS, tol=0)
    features = {name: torch.randn(size.batch, getattr(size, name), size.dim) for name in widths}
    return model, Batch(features=features, target=torch.randint(CLASSES, (size.batch,)), seeds=torch.arange(size.batch))


def train_once(model: meq.MutualEquilibrium, batch: Batch, penalties: tuple[Penalty, ...]) -> float:
    """CPU seconds of one step."""
    model.zero_grad(set_to_none=True)
    begin = time.process_time()
    output = model(batch.features, seeds=batch.seeds)
    Objective(task="classes", penalties=penalties)(model, output, batch.target, seeds=batch.seeds).total.backward()
    return time.process_time() - begin


def measure(size: Size, rounds: int) -> dict[str, Any]:
    model, batch = prepared(size)
    for penalties in ARMS.values():  # warms up
        train_once(model, batch, penalties)
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for index in range(rounds):
        turn = index % len(ARMS)  # so that no arm always follows the same one
        for arm in [*ARMS][turn:] + [*ARMS][:turn]:
            seconds[arm].append(train_once(model, batch, ARMS[arm]))
    return {"size": asdict(size), "arms": {arm: summarise(seconds[arm], seconds["task"]) for arm in ARMS}}


def summarise(seconds: list[float], task_seconds: list[float]) -> dict[str, float]:
    ratios = [with_penalty / task for with_penalty, task in zip(seconds, task_seconds, strict=True)]
    lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "cpu_seconds": statistics.median(seconds),
        "ratio_median": middle,
        "ratio_lower_quartile": lower,
        "ratio_upper_quartile": upper,
    }


def main() -> None:
    def everything(rounds: int) -> dict[str, Any]:
        return {"steps": STEPS, "cases": [measure(size, rounds) for size in SIZES]}

    record.run("The cost of each penalty over a task-only training step.", "objective_cost", 21, everything)


if __name__ == "__main__":
    main()
