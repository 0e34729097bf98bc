"""How raw features enter: projected once per solve, never per step."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from meq.blocks.pool import masked_mean


class Injection(nn.Module):
    """f(x) = W x, per token."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, dim)

    def forward(self, x: Float[Tensor, "B N W"]) -> Float[Tensor, "B N D"]:
        return self.project(x)


class PooledInjection(Injection):
    """f(x) = W mean(x) over the real tokens: one vector per modality."""

    def forward(self, x: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B D"]:
        return self.project(masked_mean(x, mask))
