"""What a deep update costs, by how many of its last steps carry gradients.

    python benchmarks/depth_cost.py

times forward, loss and backward of one model read at 24 steps, with gradients through all of them and through the last
8, 4 and 1 (`Phantom`), in interleaved rounds on one thread, and writes `benchmarks/results/depth_cost.json` in about
two minutes. Expect a step without gradients to cost a third of one with, and memory to follow the steps that have them.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import record
import torch
from torch import Tensor
from torch.nn import functional as F

import meq
from meq.studies.cost import PeakBytes

STEPS = 24
TRACKED = (24, 8, 4, 1)
SIZE = {"dim": 128, "heads": 8, "tokens": 16, "batch": 32, "classes": 3}


def prepared() -> tuple[meq.MutualEquilibrium, dict[str, Tensor], Tensor]:
    torch.manual_seed(0)
    widths = {"image": SIZE["dim"], "text": SIZE["dim"]}
    model = meq.MutualEquilibrium(widths, SIZE["classes"], SIZE["dim"], heads=SIZE["heads"], steps=STEPS, tol=0)
    features = {name: torch.randn(SIZE["batch"], SIZE["tokens"], SIZE["dim"]) for name in widths}
    return model, features, torch.randint(SIZE["classes"], (SIZE["batch"],))


def update(model: meq.MutualEquilibrium, features: dict[str, Tensor], target: Tensor, tracked: int) -> float:
    """CPU seconds of one update without the optimiser."""
    model.backward = meq.Unrolled() if tracked == STEPS else meq.Phantom(tracked)
    model.zero_grad(set_to_none=True)
    begin = time.process_time()
    F.cross_entropy(model(features).logits, target).backward()
    return time.process_time() - begin


def measure(rounds: int) -> dict[str, Any]:
    model, features, target = prepared()
    peaks = {}
    for tracked in TRACKED:  # warms up, too
        update(model, features, target, tracked)
        with PeakBytes([*model.parameters(), *features.values()]) as memory:
            update(model, features, target, tracked)
        peaks[tracked] = memory.peak
    seconds: dict[int, list[float]] = {tracked: [] for tracked in TRACKED}
    for index in range(rounds):
        turn = index % len(TRACKED)  # so that no case always follows the same one
        for tracked in TRACKED[turn:] + TRACKED[:turn]:
            seconds[tracked].append(update(model, features, target, tracked))
    cases = {}
    for tracked in TRACKED:
        ratios = [one / whole for one, whole in zip(seconds[tracked], seconds[STEPS], strict=True)]
        lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
        cases[str(tracked)] = {
            "cpu_seconds": statistics.median(seconds[tracked]),
            "ratio_median": middle,
            "ratio_lower_quartile": lower,
            "ratio_upper_quartile": upper,
            "peak_bytes": peaks[tracked],
        }
    return {"steps": STEPS, "size": SIZE, "cases": cases}


if __name__ == "__main__":
    record.run("The cost of a deep update, by the steps that carry gradients.", "depth_cost", 15, measure)
