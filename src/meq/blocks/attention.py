"""Multi-head attention on projections that were made elsewhere, so that one matrix product can serve many readers."""

from __future__ import annotations

import math

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


def attend(
    query: Float[Tensor, "B N D"],
    key: Float[Tensor, "B M D"],
    value: Float[Tensor, "B M D"],
    *,
    heads: int,
    mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B N D"]:
    """softmax(q k^T / sqrt(D / heads)) v per head, over the keys that are real: at least one per sample."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None, None, :])
    return mixed.transpose(1, 2).flatten(2)


def attention_weights(
    query: Float[Tensor, "B N D"], key: Float[Tensor, "B M D"], *, heads: int, mask: Bool[Tensor, "B M"] | None = None
) -> Float[Tensor, "B H N M"]:
    """softmax(q k^T / sqrt(D / heads)): what `attend` mixes by, for looking at; hidden keys get exactly 0."""
    q, k = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return (scores if mask is None else scores.masked_fill(~mask[:, None, None, :], -math.inf)).softmax(-1)


def check_heads(dim: int, heads: int) -> None:
    if dim % heads:
        fitting = [count for count in range(1, dim + 1) if dim % count == 0 and count <= 64]
        raise ValueError(f"dim={dim} cannot be split into {heads} heads: choose one of {', '.join(map(str, fitting))}")


class Attention(nn.Module):
    """Attention with its own projections, for parts that are not iterated: o(attend(q x, k y, v y))."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        check_heads(dim, heads)
        self.heads = heads
        self.query, self.output = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)

    def forward(
        self, x: Float[Tensor, "B N D"], y: Float[Tensor, "B M D"], mask: Bool[Tensor, "B M"] | None = None
    ) -> Float[Tensor, "B N D"]:
        key, value = self.key_value(y).chunk(2, dim=-1)
        return self.output(attend(self.query(x), key, value, heads=self.heads, mask=mask))
