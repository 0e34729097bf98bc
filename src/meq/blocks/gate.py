"""The soft gate between the old state and what the template proposes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class SoftGate(nn.Module):
    """g = floor + (1 - floor) sigmoid(W [n; u]), then z + g (u - z): per token and channel.

    W's half that reads n is part of the state's one fused projection; here is the half that reads u.
    """

    def __init__(self, dim: int, floor: float) -> None:
        super().__init__()
        if not 0 <= floor < 1:
            raise ValueError(f"the gate's floor must lie in [0, 1), got {floor}")
        self.floor = floor
        self.read_proposal = nn.Linear(dim, dim, bias=False)

    def openness(self, from_state: Float[Tensor, "*B D"], proposal: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """g, between the floor and 1; `from_state` is the half of W [n; u] that reads n, bias included."""
        opened = torch.sigmoid(from_state + self.read_proposal(proposal))
        return opened if self.floor == 0 else self.floor + (1 - self.floor) * opened

    def forward(
        self, state: Float[Tensor, "*B D"], from_state: Float[Tensor, "*B D"], proposal: Float[Tensor, "*B D"]
    ) -> Float[Tensor, "*B D"]:
        # not lerp: under autocast the three differ in dtype
        return torch.addcmul(state, self.openness(from_state, proposal), proposal - state)
