"""What every penalty is: a weight, a name, and a number per sample."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from meq.objectives.evaluation import Evaluation


@dataclass(frozen=True, eq=False)
class Measured:
    """One penalty on one evaluation, for the R samples that take part in it."""

    per_sample: Float[Tensor, " R"]
    statistics: dict[str, Float[Tensor, " R"]] = field(default_factory=dict)


class Penalty(ABC):
    """A term of the objective. With weight 0 it is not computed at all."""

    name: ClassVar[str]
    """Its key in `Loss.terms`."""
    weight: float

    @abstractmethod
    def measure(self, evaluation: Evaluation) -> Measured:
        """The unweighted penalty of each sample, and what was seen on the way."""

    @property
    def split_probes(self) -> int:
        """How many probes it needs modality by modality."""
        return 0


def root(x: Tensor) -> Tensor:
    """sqrt(x) with gradient 0 at 0, where the true one is infinite and would turn every other into NaN."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1).sqrt(), 0)


def check_weight(weight: float, label: str) -> None:
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"{label}(weight) must be 0 (off) or a positive number, got {weight!r}")


def check_probes(probes: int, label: str) -> None:
    if isinstance(probes, bool) or not isinstance(probes, int) or probes < 1:
        raise ValueError(f"{label}(probes) must be a whole number of at least 1, got {probes!r}")
