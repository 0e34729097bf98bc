"""Feed-forward parts."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class FeedForward(nn.Module):
    """x + W2 gelu(W1 LN(x))"""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.widen, self.narrow = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*B D"], keep: Float[Tensor, "*#B D"] | None = None) -> Float[Tensor, "*B D"]:
        """`keep` is a dropout mask for the branch, already scaled."""
        branch = self.narrow(F.gelu(self.widen(self.norm(x))))
        return x + (branch if keep is None else branch * keep)


class MLP(nn.Sequential):
    """W2 gelu(W1 x)"""

    def __init__(self, width_in: int, hidden: int, width_out: int) -> None:
        super().__init__(nn.Linear(width_in, hidden), nn.GELU(), nn.Linear(hidden, width_out))
