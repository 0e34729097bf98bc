"""What `meq compare` compares, and with which budget; light enough for the help of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meq.options import nearest, whole_number
from meq.training.arms import ARMS
from meq.training.config import SMALL, TrainConfig

COMPARED = ("meq", "concat", "self-attention", "cross-attention")
"""The arms that are trained unless others are named."""
COMPARED_SEEDS = 3
"""As few as can call a difference."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """What is compared, with which budget."""

    arms: tuple[str, ...] = COMPARED
    seeds: int = COMPARED_SEEDS
    train: TrainConfig = SMALL
    """The budget of every trained arm; its seed is the first one."""
    shape: Mapping[str, Any] | None = None
    """Options of the models: dim, heads, steps, dropout. What else sizes a baseline is matched to the equilibrium."""
    fixed: tuple[str, ...] = ()
    """Options of the budget that do not follow from the size of the train split: see `fitted_to`."""

    def __post_init__(self) -> None:
        whole_number("`seeds`", self.seeds)
        for name in self.arms:
            if name not in ARMS:
                raise ValueError(f"there is no arm {name!r} to compare: {nearest(name, ARMS)}")
