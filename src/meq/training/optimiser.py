"""AdamW with two groups, and the learning rate along the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from meq.core.options import nearest

DECAYS = ("cosine", "linear", "constant")


def make_optimiser(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Matrices decay; biases, norms, stand-ins and scalars (mixing, learned damping) do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A linear warmup over the first share of all steps, then a decay to zero at the last: cosine, linear or none."""

    total_steps: int
    peak: float
    warmup: float = 0.05
    decay: str = "cosine"

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ValueError(f"there is no decay {self.decay!r}: {nearest(self.decay, DECAYS)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must lie in [0, 1), got {self.warmup}")

    def at(self, step: int) -> float:
        """The learning rate of a step, counted from 0; a function of the step alone, so resuming needs no state."""
        warm = round(self.warmup * self.total_steps)
        if step < warm:
            return self.peak * (step + 1) / warm
        share = (step - warm) / max(1, self.total_steps - warm)
        factor = {"cosine": 0.5 * (1 + math.cos(math.pi * share)), "linear": 1 - share, "constant": 1.0}[self.decay]
        return self.peak * factor
