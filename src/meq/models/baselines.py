"""What the mutual equilibrium is compared with, behind the same interface: same features, masks, missing modalities.

`depth` and `hidden` are there to be matched: see `match.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from meq.core.state import State
from meq.models.admit import Features, TokenMasks
from meq.models.base import FusedState, FusionModel
from meq.models.blocks import Attention, FeedForward, Injection, readable_keys
from meq.options import checked_options, whole_number


class SinglePass(FusionModel):
    """A baseline that does not iterate: injections, then what `build` made, then the readout."""

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None = None,
        dim: int = 768,
        *,
        heads: int = 8,
        hidden: int | None = None,
        depth: int = 2,
        modality_dropout: float = 0.0,
        head: str = "classes",
        head_width: int = 1024,
        answering: Sequence[str] | None = None,
    ) -> None:
        """`hidden` is the width of the mixing layers' inside, 4 `dim` unless given; `depth` their number.

        `answering`: the modalities whose tokens answer with head="tokens", all of them unless given.
        """
        self.hidden = 4 * whole_number("dim", dim) if hidden is None else whole_number("hidden", hidden)
        whole_number("depth", depth)
        super().__init__(widths, classes, dim, heads, "pooled", head, head_width, modality_dropout, answering)
        self.inject = nn.ModuleDict({name: Injection(width, dim) for name, width in widths.items()})
        self.build(heads, depth)

    @abstractmethod
    def build(self, heads: int, depth: int) -> None:
        """Make the layers that fuse."""

    def fuse(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> FusedState:
        state = {name: self.inject[name](x) for name, x in features.items()}
        return FusedState(self.mix(state, masks), masks)

    def mix(self, state: State, masks: TokenMasks) -> State:
        """Let the tokens meet; a model that fuses after pooling leaves them alone."""
        return state


@checked_options
class Concat(SinglePass):
    """Pooled features side by side, then an MLP of `depth` hidden layers of `hidden` units.

    With head="tokens" every token goes that way, beside the pooled features of all modalities.

    >>> model = meq.Concat({"image": 8, "text": 6}, classes=3, dim=16)
    >>> model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)}).logits.shape  # B C
    torch.Size([2, 3])
    """

    def build(self, heads: int, depth: int) -> None:
        vectors = len(self.widths) + (self.head_kind == "tokens")
        sizes = [vectors * self.dim, *[self.hidden] * depth]
        layers = [[nn.Linear(width_in, width_out), nn.GELU()] for width_in, width_out in pairwise(sizes)]
        self.layers = nn.Sequential(*(layer for pair in layers for layer in pair))

    @property
    def summary_width(self) -> int:
        return self.hidden

    @property
    def token_width(self) -> int:
        return self.hidden

    def summary(self, pooled: dict[str, Tensor]) -> Float[Tensor, "B S"]:
        return self.layers(super().summary(pooled))

    def token_summary(self, tokens: Float[Tensor, "B N D"], pooled: dict[str, Tensor]) -> Float[Tensor, "B N S"]:
        beside = super().summary(pooled)[:, None].expand(-1, tokens.shape[1], -1)
        return self.layers(torch.cat([tokens, beside], dim=-1))


@checked_options
class SelfAttention(SinglePass):
    """`depth` transformer layers over the tokens of all modalities together.

    >>> model = meq.SelfAttention({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)}).logits.shape  # B C
    torch.Size([2, 3])
    """

    def build(self, heads: int, depth: int) -> None:
        self.kinds = nn.ParameterDict({name: nn.Parameter(0.02 * torch.randn(self.dim)) for name in self.widths})
        self.layers = nn.ModuleList([_Layer(self.dim, heads, self.hidden) for _ in range(depth)])

    def mix(self, state: State, masks: TokenMasks) -> State:
        keys, _ = readable_keys(list(state), state, masks)
        tokens = torch.cat([z + self.kinds[name] for name, z in state.items()], dim=1)
        for layer in self.layers:
            tokens = layer(tokens, keys)
        parts = tokens.split([z.shape[1] for z in state.values()], dim=1)
        return dict(zip(state, parts, strict=True))


@checked_options
class CrossAttention(SinglePass):
    """`depth` layers in which each modality reads all the others; both from the old layer.

    >>> model = meq.CrossAttention({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)}).logits.shape  # B C
    torch.Size([2, 3])
    """

    def build(self, heads: int, depth: int) -> None:
        if len(self.widths) < 2:
            raise ValueError(f"cross-attention needs at least two modalities, got {list(self.widths)}")
        self.layers = nn.ModuleList(
            [nn.ModuleDict({name: _Layer(self.dim, heads, self.hidden) for name in self.widths}) for _ in range(depth)]
        )

    def mix(self, state: State, masks: TokenMasks) -> State:
        others = {name: [other for other in state if other != name] for name in state}
        keys = {name: readable_keys(others[name], state, masks) for name in state}
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            state = {
                name: layer[name](z, *keys[name], torch.cat([state[other] for other in others[name]], dim=1))
                for name, z in state.items()
            }
        return state


@checked_options
class LowRankFusion(SinglePass):
    """LMF: h = sum_r w_r prod_m (W_m,r [z_m; 1]) + b, the outer product of the pooled vectors at rank `rank`.

    >>> model = meq.LowRankFusion({"image": 8, "text": 6}, classes=3, dim=16)
    >>> model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)}).logits.shape  # B C
    torch.Size([2, 3])
    """

    has_token_states = False

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None = None,
        dim: int = 768,
        *,
        hidden: int | None = None,
        rank: int = 4,
        modality_dropout: float = 0.0,
        head: str = "classes",
        head_width: int = 1024,
    ) -> None:
        self.rank = whole_number("rank", rank)
        shared: dict[str, Any] = {"modality_dropout": modality_dropout, "head": head, "head_width": head_width}
        super().__init__(widths, classes, dim, hidden=dim if hidden is None else hidden, **shared)

    def build(self, heads: int, depth: int) -> None:
        # a Linear's bias is the factor of the appended 1
        self.factors = nn.ModuleDict({name: nn.Linear(self.dim, self.rank * self.hidden) for name in self.widths})
        self.weights = nn.Parameter(torch.full((self.rank,), 1 / self.rank))
        self.bias = nn.Parameter(torch.zeros(self.hidden))

    @property
    def summary_width(self) -> int:
        return self.hidden

    def summary(self, pooled: dict[str, Tensor]) -> Float[Tensor, "B S"]:
        factors = [self.factors[name](z).unflatten(-1, (-1, self.hidden)) for name, z in pooled.items()]
        product = torch.stack(factors).prod(0)  # B R S
        return torch.einsum("brs,r->bs", product, self.weights.to(product.dtype)) + self.bias


class _Layer(nn.Module):
    """x + Attn(LN x, LN y), then the feed-forward; y is x itself unless given."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.attention, self.feed = nn.LayerNorm(dim), Attention(dim, heads), FeedForward(dim, hidden)

    def forward(self, x: Tensor, keys: Tensor | None, someone: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        normed = self.norm(x)
        term = self.attention(normed, normed if y is None else self.norm(y), keys)
        if someone is not None:
            term = torch.where(someone[:, None, None], term, 0)
        return self.feed(x + term)
