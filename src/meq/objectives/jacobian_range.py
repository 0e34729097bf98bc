"""JacobianRange: the size of the map's Jacobian, held between two bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from meq.core.options import checked_options
from meq.core.state import dots
from meq.objectives.evaluation import Evaluation
from meq.objectives.penalty import Measured, Penalty, check_probes, check_weight, root


@checked_options
@dataclass(frozen=True, kw_only=True)
class JacobianRange(Penalty):
    """max(0, |J| - high)^2 + max(0, low - |J|)^2 per sample.

    |J| = sqrt(mean over probes of |v^T J|^2 / n), with J of the undamped map at the read state and n its real entries:
    an estimate of the root mean square singular value, exactly 1 for the identity. It is not the spectral radius.
    """

    name: ClassVar[str] = "jacobian"

    low: float | None = 0.7
    """None: no lower bound."""
    high: float | None = 0.9
    """None: no upper bound. Without either, |J| is measured and nothing is held."""
    probes: int = 1
    """Random sign vectors per sample; |J|^2 is unbiased for any number of them."""
    weight: float = 0.5

    def __post_init__(self) -> None:
        check_probes(self.probes, "JacobianRange")
        check_weight(self.weight, "JacobianRange")
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        if not all(0 <= bound < torch.inf for bound in bounds) or (len(bounds) == 2 and bounds[0] >= bounds[1]):
            raise ValueError(f"JacobianRange needs 0 <= low < high, got low={self.low!r}, high={self.high!r}")

    def measure(self, evaluation: Evaluation) -> Measured:
        size = jacobian_norm(evaluation, self.probes)
        penalty = torch.zeros_like(size)
        if self.high is not None:
            penalty = penalty + (size - self.high).clamp(min=0).square()
        if self.low is not None:
            penalty = penalty + (self.low - size).clamp(min=0).square()
        return Measured(penalty, {"jacobian_norm": size})


def jacobian_norm(evaluation: Evaluation, probes: int) -> Float[Tensor, " R"]:
    """sqrt(mean over probes of |v^T J|^2 / n)"""
    entries = torch.stack([evaluation.entries(name) for name in evaluation.state]).sum(0)
    products = [evaluation.product(probe) for probe in range(probes)]
    # a sum of squares, not a norm squared: rounding would make the identity's 1 only nearly 1
    squares = torch.stack([dots([x], x, evaluation.masks)[:, 0] for x in products]).mean(0)
    return root(squares / entries.clamp(min=1))
