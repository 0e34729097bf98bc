"""The gMLP mixer: tokens of all states mixed by a learned matrix instead of attention."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class SpatialMixer(nn.Module):
    """W_out(a * (sum_o W_o LN(b_o) + bias)), with a = gelu(W_a n), b_o = gelu(W_b n_o) over every state o.

    W_o mixes the tokens of state o into this state's, so the longest input of every modality has to be known; rows of
    padding are zero.
    """

    def __init__(self, name: str, max_tokens: Mapping[str, int], dim: int, hidden: int) -> None:
        super().__init__()
        self.name, self.max_tokens = name, dict(max_tokens)
        self.read_own, self.read_all = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.norm, self.output = nn.LayerNorm(hidden), nn.Linear(hidden, dim)
        own = self.max_tokens[name]
        self.weights = nn.ParameterDict(
            # near zero, with a bias of one: the block starts as a plain feed-forward, as in the gMLP paper
            {other: nn.Parameter(1e-3 * torch.randn(own, longest)) for other, longest in self.max_tokens.items()}
        )
        self.bias = nn.Parameter(torch.ones(own, 1))

    def forward(
        self, normed: Mapping[str, Float[Tensor, "B _ D"]], masks: Mapping[str, Bool[Tensor, "B _"]]
    ) -> Float[Tensor, "B N D"]:
        length = normed[self.name].shape[1]
        mixed: Tensor = self.bias[:length]
        for other, n in normed.items():
            tokens = self.norm(F.gelu(self.read_all(n)))
            if other in masks:
                tokens = tokens.masked_fill(~masks[other][..., None], 0)
            mixed = mixed + self.weights[other][:length, : n.shape[1]] @ tokens
        return self.output(F.gelu(self.read_own(normed[self.name])) * mixed)

    def check_length(self, lengths: Mapping[str, int]) -> None:
        for name, length in lengths.items():
            if length > self.max_tokens[name]:
                raise ValueError(
                    f"{name!r} has {length} tokens, but the gMLP mixer was built for at most {self.max_tokens[name]}: "
                    "its mixing weights belong to token positions. Raise max_tokens, or cut the input"
                )
