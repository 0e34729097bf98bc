"""From tokens to one vector per sample."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor


def masked_mean(x: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B D"]:
    """The mean of the real tokens; a sample without any gives zero, which its caller must replace."""
    if mask is None:
        return x.mean(1)
    total = x.masked_fill(~mask[..., None], 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1).to(x.dtype)
