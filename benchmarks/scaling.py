"""How the cost of an equilibrium grows with tokens, modalities, samples, steps and width; and what training gets done.

    python benchmarks/scaling.py

times forward passes in which one size at a time is doubled, and updates of the equilibrium and of single-pass arms of
its size, in interleaved rounds of CPU time on one thread; writes `benchmarks/results/scaling.json` in some minutes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import record
import torch
from speed import interleaved, ratios
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import meq
from meq.models.base import FusionModel
from meq.objectives import JacobianRange, Objective, ResidualCorrection
from meq.studies.cost_study import matched_arms, paper_encoders


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of one forward pass; `tokens` are those of each modality."""

    tokens: int = 32
    modalities: int = 2
    batch: int = 8
    steps: int = 6
    width: int = 128


BASE = Size()
AXES: dict[str, tuple[int, ...]] = {
    "tokens": (16, 32, 64, 128, 256, 512),
    "modalities": (2, 3, 4, 5),
    "batch": (1, 2, 4, 8, 16, 32),
    "steps": (1, 2, 4, 8, 16, 32),
    "width": (32, 64, 128, 256, 512),
}
CROSS = "cross-attention"


def forward_of(size: Size) -> Callable[[], Any]:
    torch.manual_seed(0)
    names = "abcde"[: size.modalities]
    widths = dict.fromkeys(names, size.width)
    model = meq.MutualEquilibrium(widths, 3, size.width, heads=4, steps=size.steps, tol=0.0, head_width=128).eval()
    x = {name: torch.randn(size.batch, size.tokens, size.width) for name in names}

    def call() -> None:
        with torch.no_grad():
            model(x)

    return call


def growth(values: tuple[int, ...], costs: list[float]) -> dict[str, float]:
    """The exponent p in cost ~ value^p over all values, by least squares in logarithms, and over the last two."""
    x, y = [math.log(value) for value in values], [math.log(cost) for cost in costs]
    slope = statistics.linear_regression(x, y).slope
    return {"exponent": slope, "last": (y[-1] - y[-2]) / (x[-1] - x[-2])}


def scaled(axis: str, rounds: int) -> dict[str, Any]:
    values = AXES[axis]
    cases = {str(value): forward_of(replace(BASE, **{axis: value})) for value in values}
    seconds = interleaved(cases, rounds)
    flops = []
    for call in cases.values():
        counter = FlopCounterMode(display=False)
        with counter, sdpa_kernel(SDPBackend.MATH):  # which is counted
            call()
        flops.append(float(counter.get_total_flops()))
    medians = [statistics.median(seconds[str(value)]) for value in values]
    return {
        "values": list(values),
        "cpu_seconds": medians,
        "flops": flops,
        "time": growth(values, medians),
        "work": growth(values, flops),
    }


def update_of(
    model: FusionModel, x: dict[str, Tensor], target: Tensor, backward: meq.Backward | None
) -> Callable[[], None]:
    """Forward, objective, backward and optimiser; the equilibrium with the paper's penalties."""
    iterates = isinstance(model, meq.MutualEquilibrium)
    objective = Objective(penalties=(JacobianRange(), ResidualCorrection()) if iterates else ())
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def call() -> None:
        if backward is not None:
            model.backward = backward
        objective(model, model(x), target).total.backward()
        optimiser.step()
        optimiser.zero_grad()

    return call


def throughput(rounds: int) -> dict[str, Any]:
    arms = matched_arms(("concat", "self-attention", CROSS, "meq"), quick=True, depths=(6,))
    with torch.no_grad():
        x = {name: features.repeat(8, 1, 1) for name, features in paper_encoders(quick=True).encoded().items()}
    samples = len(next(iter(x.values())))
    target = torch.arange(samples) % 3
    equilibrium = next(name for name in arms if name.startswith("meq"))
    ways: dict[str, tuple[str, meq.Backward | None]] = {
        "concat": ("concat", None),
        "self-attention": ("self-attention", None),
        CROSS: (CROSS, None),
        "meq": (equilibrium, meq.Unrolled()),
        "meq, last three steps": (equilibrium, meq.Phantom(3)),
        "meq, implicit": (equilibrium, meq.Implicit()),
    }
    for model in arms.values():
        model.train().requires_grad_()
    cases = {name: update_of(arms[arm], x, target, backward) for name, (arm, backward) in ways.items()}
    if isinstance(arms[equilibrium].damping, Tensor):  # an implicit gradient could not learn it
        arms[equilibrium].damping.requires_grad_(False)
    seconds = interleaved(cases, rounds)
    return {
        "tokens": {name: features.shape[1] for name, features in x.items()},
        "batch": samples,
        "steps": 6,
        "width": arms[equilibrium].dim,
        "arms": {
            name: {
                "parameters": sum(weights.numel() for weights in arms[ways[name][0]].parameters()),
                "samples_per_cpu_second": samples / statistics.median(seconds[name]),
                **ratios(seconds, name, CROSS),
            }
            for name in cases
        },
    }


def measure(rounds: int) -> dict[str, Any]:
    axes = {axis: scaled(axis, rounds) for axis in AXES}
    base = {name: getattr(BASE, name) for name in AXES}
    return {"base": base, "axes": axes, "throughput": throughput(rounds)}


if __name__ == "__main__":
    record.run("How the cost of an equilibrium grows, and what training gets done.", "scaling", 7, measure)
