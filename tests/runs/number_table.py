"""A table of numbers, drawn on the spot: two groups of columns, of which the first says more about the label."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from meq.data.request import DataRequest
from meq.training import TrainConfig

SHAPE = {"dim": 8, "heads": 2, "steps": 2}
FEW = TrainConfig(epochs=2, batch_size=64, learning_rate=1e-2, radius_samples=0, monitor_samples=4)
HALF = {"fractions": [0.35, 0.55, 0.1]}
"""A large dev split, of which half is kept apart."""


def write_numbers(path: Path, *, rows: int = 600, seed: int = 0, task: str = "classes") -> Path:
    """Columns a_0, a_1, b_0, b_1 and y: a class that a_0 and b_0 decide with some noise, or a number."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4))
    worth = 2 * x[:, 0] + x[:, 2] + random.normal(size=rows)
    classes = ["yes" if value > 0 else "no" for value in worth]
    label = [f"{value:.4f}" for value in worth] if task == "score" else classes
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["a_0", "a_1", "b_0", "b_1", "y"])
        table.writerows([*(f"{value:.5f}" for value in row), y] for row, y in zip(x, label, strict=True))
    return path


def numbers_request(path: Path, *, task: str = "classes", **options: object) -> DataRequest:
    told = {"task": "score"} if task == "score" else {}
    return DataRequest(data=str(path), vectors=("a_*", "b_*"), label="y", options={**HALF, **told, **options})
