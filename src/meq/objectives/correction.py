"""ResidualCorrection: the read state is drawn towards a fixed point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from meq.core.options import checked_options
from meq.objectives.evaluation import Evaluation
from meq.objectives.penalty import Measured, Penalty, check_weight


@checked_options
@dataclass(frozen=True, kw_only=True)
class ResidualCorrection(Penalty):
    """1/2 sum_m |r_m| / |z_m| per sample, r = z - T(z) of the undamped map at the read state.

    Modalities that a sample lacks are left out, and so are those at z = 0, where the ratio has no gradient. The
    identity makes this term zero as well: see `CrossFloor`.
    """

    name: ClassVar[str] = "residual"

    weight: float = 0.3

    def __post_init__(self) -> None:
        check_weight(self.weight, "ResidualCorrection")

    def measure(self, evaluation: Evaluation) -> Measured:
        ratios = []
        for name, size in evaluation.size.items():
            somewhere = size > 0  # false for absent modalities, too
            ratios.append(torch.where(somewhere, evaluation.gap[name] / torch.where(somewhere, size, 1), 0))
        return Measured(torch.stack(ratios).sum(0) / 2)
