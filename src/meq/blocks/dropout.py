"""Dropout for an iterated map: drawn once per solve, the same at every step, or T would not be a map."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def keep_masks(
    batch: int,
    shape: tuple[int, ...],
    rate: float,
    *,
    like: Tensor,
    seeds: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B ..."]:
    """Scaled keep masks, one per sample: 0 with probability `rate`, else 1 / (1 - rate).

    With `seeds` every sample draws from its own generator, so that neither its neighbours nor the number of processes
    changes what it gets; otherwise torch's global generator is used.
    """
    if seeds is None:
        uniform = torch.rand(batch, *shape, device=like.device)
    else:
        drawn = [torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds.tolist()]
        uniform = torch.stack(drawn).to(like.device)
    return (uniform >= rate).to(like.dtype) / (1 - rate)
