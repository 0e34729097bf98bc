"""F of one modality: u = alpha S(z) + (1 - alpha) M(z, z_others) + f(x), normed, and gated against the old state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from meq.core.state import State
from meq.models.blocks import (
    ALL_TOKENS,
    MLP,
    AllTokens,
    DecayingCarry,
    FeedForward,
    Injection,
    PooledInjection,
    RealTokens,
    SoftGate,
    SpatialMixer,
    attend,
    attention_weights,
    check_heads,
    is_lean,
    or_stand_in,
)
from meq.models.iterated import Context
from meq.options import real_number, switch, whole_number

DECAY = "decay"
"""The gate that is a `DecayingCarry`."""


@runtime_checkable
class Pieces(Protocol):
    """What is read of the pieces of a projection: a dict of them, or `SlotsWhenAsked`."""

    def __getitem__(self, slot: str, /) -> Tensor: ...

    def get(self, slot: str, default: Tensor, /) -> Tensor: ...


Slots = Mapping[str, Pieces]
"""Per modality, the pieces of its one fused projection by name."""
SHOWN = ("shown_key", "shown_value")
"""What the other sides read of a state."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """How a side is built, the same for every modality."""

    dim: int
    heads: int
    hidden: int
    mixer: str = "attention"
    max_tokens: Mapping[str, int] | None = None
    gate: bool | str = True
    """True: the soft gate; "decay": a `DecayingCarry` instead; False: none, F = u."""
    gate_floor: float = 0.0
    cross: bool = True
    own: bool = True
    start: str = "injection"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        cross, own = switch("cross", self.cross), switch("own", self.own)  # both are looked at
        if not (cross or own):
            raise ValueError("own=False and cross=False leave nothing to iterate: keep one of them")
        whole_number("hidden", self.hidden)
        if self.mixer != "mlp":
            check_heads(self.dim, self.heads)
        if not isinstance(self.max_tokens, Mapping | None):
            raise TypeError(
                f"max_tokens must be a dict such as {{'image': 50, 'text': 32}}, got {self.max_tokens!r:.80}"
            )
        for name, longest in (self.max_tokens or {}).items():
            whole_number(f"max_tokens of {name!r}", longest)
        if not isinstance(self.gate, bool) and self.gate != DECAY:
            raise ValueError(f"gate must be True, False or {DECAY!r}, got {self.gate!r:.80}")
        real_number("gate_floor", self.gate_floor, wanted="must lie in [0, 1)", low=0.0, high=1.0)
        if self.gate_floor and self.gate is not True:
            raise ValueError(
                f"gate_floor is a floor under the soft gate, and gate={self.gate!r} has none: leave one out"
            )
        real_number("dropout", self.dropout, wanted="must lie in [0, 1)", low=0.0, high=1.0)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Modules of your own for one modality.

    inject(x: B N W) -> B N D; own(z: B N D, mask: B N or None) -> B N D, and
    cross(z: B N D, others: B M D, mask: B M or None) -> B N D with the other states' tokens one after the other. With
    mixer="mlp" there is inject(x: B N W, mask: B N or None) -> B D alone.

    >>> parts = {"image": meq.Parts(inject=torch.nn.Linear(8, 16))}  # B N 8 -> B N 16
    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2, parts=parts)
    """

    inject: nn.Module | None = None
    own: nn.Module | None = None
    cross: nn.Module | None = None


class Side(nn.Module):
    """What every mixer shares: injection, norms, the fused projection and the gate."""

    slots: tuple[str, ...]
    dropout_sites: tuple[str, ...] = ()
    mixing: str
    """What mixes the tokens, in words: named in the error where there are no attention weights."""

    def __init__(self, name: str, design: Design, slots: Sequence[str], inject: nn.Module) -> None:
        super().__init__()
        dim = design.dim
        self.name, self.heads = name, design.heads
        self.inject, self.norm, self.settle = inject, nn.LayerNorm(dim), nn.LayerNorm(dim)
        soft = SoftGate(dim, design.gate_floor) if design.gate is True else None
        self.gate = DecayingCarry(dim) if design.gate == DECAY else soft
        self.slots = tuple(slots) if soft is None else (*slots, "gate")
        self.project = nn.Linear(dim, len(self.slots) * dim) if self.slots else None

    leaves_padding = False
    """Can it work on the real tokens alone?"""

    def project_slots(self, normed: Tensor) -> dict[str, Tensor]:
        if self.project is None:
            return {}
        return dict(zip(self.slots, self.project(normed).chunk(len(self.slots), dim=-1), strict=True))

    def forward(self, state: State, normed: State, slots: Slots, context: Context) -> Tensor:
        """F at a state; where the context says that padding is left out, `normed` and the gate's slot have none."""
        tokens = context.get("tokens", {}).get(self.name, ALL_TOKENS)
        proposal = self.settle(self.propose(state, normed, slots, context))
        if self.gate is None:
            return tokens.spread(proposal)
        z = tokens.take(state[self.name])
        return tokens.spread(self.gate(z, slots[self.name].get("gate", proposal), proposal))

    def openness(self, state: State, normed: State, slots: Slots, context: Context) -> Tensor:
        assert self.gate is not None
        proposal = self.settle(self.propose(state, normed, slots, context))
        return self.gate.openness(slots[self.name].get("gate", proposal), proposal)

    @abstractmethod
    def propose(self, state: State, normed: State, slots: Slots, context: Context) -> Tensor:
        """u, before its norm."""

    def attention(self, slots: Slots, context: Context) -> dict[str, Tensor]:
        """By modality read: the attention weights (B H N M); see `PreparedOperator.attention`."""
        raise ValueError(
            f"{self.name!r} is mixed by {self.mixing}, so there are no attention weights to look at: "
            "use grad-cam or gradient"
        )

    def enter(self, x: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"] | None) -> Tensor:
        """f(x)"""
        return self.inject(x)

    def state_mask(self, mask: Bool[Tensor, "B N"]) -> Tensor:
        return mask

    def check(self, lengths: Mapping[str, int]) -> None:
        """Raise an error for token counts that this side cannot take."""


class SlotsWhenAsked:
    """The pieces of one state's projection, each made when it is asked for, and not kept: the memory of one of them.

    Only where no gradient is taken. What several sides read is kept from the first to the last of them. No `Mapping`,
    whose items somebody might walk through: to ask is to compute.
    """

    def __init__(self, side: Side, normed: Tensor, tokens: RealTokens | AllTokens, readers: int) -> None:
        self.side, self.normed, self.tokens = side, normed, tokens
        self.left = dict.fromkeys(SHOWN, readers)
        self.kept: dict[str, Tensor] = {}

    def __getitem__(self, slot: str) -> Tensor:
        made = self.kept.pop(slot) if slot in self.kept else self._make(slot)
        self.left[slot] = self.left.get(slot, 1) - 1
        if self.left[slot] > 0:
            self.kept[slot] = made
        return made

    def _make(self, slot: str) -> Tensor:
        project, first = self.side.project, self.side.slots.index(slot) * self.normed.shape[-1]
        assert project is not None
        made = part_of(project, first, first + self.normed.shape[-1])(self.normed)
        return made if slot == "gate" else self.tokens.spread(made)  # attention wants every sample's own

    def get(self, slot: str, default: Tensor) -> Tensor:
        return self[slot] if slot in self.side.slots else default


class AttentionSide(Side):
    """S is self-attention, M cross-attention over the tokens of all the others; both with a feed-forward behind."""

    mixing = "parts of your own"
    own_slots: tuple[str, ...] = ("own_query", "own_key", "own_value")
    cross_slots: tuple[str, ...] = ("cross_query", "shown_key", "shown_value")

    def __init__(self, name: str, width: int, modalities: Sequence[str], design: Design, parts: Parts) -> None:
        own_slots = self.own_slots if design.own and parts.own is None else ()
        cross_slots = self.cross_slots if design.cross else ()
        super().__init__(name, design, own_slots + cross_slots, parts.inject or Injection(width, design.dim))
        self.others = [other for other in modalities if other != name]
        self.uses_own, self.uses_cross = design.own, design.cross
        self.own_part, self.cross_part = parts.own, parts.cross
        self.build_own(design)
        self.build_cross(design)
        self.balance = nn.Parameter(torch.zeros(())) if design.own and design.cross else None
        """alpha = sigmoid(balance) weighs S against M."""

    def build_own(self, design: Design) -> None:
        if design.own and self.own_part is None:
            self.own_output = nn.Linear(design.dim, design.dim)
            self.own_feed = FeedForward(design.dim, design.hidden)
            self.dropout_sites = (*self.dropout_sites, "own_attention", "own_feed")

    def build_cross(self, design: Design) -> None:
        if design.cross and self.cross_part is None:
            self.cross_output = nn.Linear(design.dim, design.dim)
            self.cross_feed = FeedForward(design.dim, design.hidden)
            self.dropout_sites = (*self.dropout_sites, "cross_attention", "cross_feed")

    @property
    def leaves_padding(self) -> bool:  # type: ignore[override]
        return self.own_part is None and self.cross_part is None

    def propose(self, state: State, normed: State, slots: Slots, context: Context) -> Tensor:
        tokens = context.get("tokens", {}).get(self.name, ALL_TOKENS)
        if self.balance is None:
            only = self.own if self.uses_own else self.cross
            return only(state, normed, slots, context) + tokens.take(context["injection"][self.name])
        own, cross = self.own(state, normed, slots, context), self.cross(state, normed, slots, context)
        share = torch.sigmoid(self.balance)
        if is_lean(cross):  # the same sums
            return (own - cross).mul_(share).add_(cross).add_(tokens.take(context["injection"][self.name]))
        return cross + share * (own - cross) + tokens.take(context["injection"][self.name])

    def own(self, state: State, normed: State, slots: Slots, context: Context) -> Tensor:
        """S(z): p = z + Attn(n), then p + FFN(LN p)."""
        z, mask = state[self.name], context["own_keys"][self.name]
        if self.own_part is not None:
            return self.own_part(z, mask)
        tokens = context.get("tokens", {}).get(self.name, ALL_TOKENS)
        read = tokens.take(attend(*(slots[self.name][slot] for slot in self.own_slots), heads=self.heads, mask=mask))
        keep = context["keep"].get(self.name, {})
        read = tokens.take(z) + _kept(self.own_output(read), keep.get("own_attention"))
        return self.own_feed(read, keep.get("own_feed"))

    def cross(self, state: State, normed: State, slots: Slots, context: Context) -> Tensor:
        """M(z, others): q = z + CrossAttn(n, n_others), then q + FFN(LN q)."""
        z, mask, someone = state[self.name], context["cross_keys"][self.name], context["someone"][self.name]
        if self.cross_part is not None:
            read = self.cross_part(z, _concatenated([state[other] for other in self.others]), mask)
            return read if someone is None else torch.where(someone[:, None, None], read, z)
        tokens = context.get("tokens", {}).get(self.name, ALL_TOKENS)
        shown = (_concatenated([slots[other][slot] for other in self.others]) for slot in SHOWN)
        read = tokens.take(attend(slots[self.name]["cross_query"], *shown, heads=self.heads, mask=mask))
        read = self.cross_output(read)
        if someone is not None:  # without another modality, the residual path alone
            read = torch.where(tokens.of_samples(someone), read, 0)
        keep = context["keep"].get(self.name, {})
        read = tokens.take(z) + _kept(read, keep.get("cross_attention"))  # one name for all: none is held longer
        return self.cross_feed(read, keep.get("cross_feed"))

    def attention(self, slots: Slots, context: Context) -> dict[str, Tensor]:
        if self.own_part is not None or self.cross_part is not None:
            return super().attention(slots, context)
        share = float(self.uses_own) if self.balance is None else torch.sigmoid(self.balance)
        weights: dict[str, Tensor] = {}
        if self.uses_own:
            query, key = slots[self.name]["own_query"], slots[self.name]["own_key"]
            mask = context["own_keys"][self.name]
            weights[self.name] = share * attention_weights(query, key, heads=self.heads, mask=mask)
        if self.uses_cross:
            weights |= self._cross_attention(slots, context, 1 - share)
        return weights

    def _cross_attention(self, slots: Slots, context: Context, share: Tensor | float) -> dict[str, Tensor]:
        mask, someone = context["cross_keys"][self.name], context["someone"][self.name]
        keys = [slots[other]["shown_key"] for other in self.others]
        query = slots[self.name]["cross_query"]
        weights = share * attention_weights(query, _concatenated(keys), heads=self.heads, mask=mask)
        if someone is not None:
            weights = torch.where(someone[:, None, None, None], weights, 0)
        return dict(zip(self.others, weights.split([key.shape[1] for key in keys], dim=-1), strict=True))


class SpatialSide(AttentionSide):
    """As `AttentionSide`, with a gMLP over the tokens of all states for M."""

    mixing = "a gMLP"
    cross_slots = ()
    leaves_padding = False

    def build_cross(self, design: Design) -> None:
        if self.cross_part is not None:
            raise ValueError("mixer='gmlp' is an M of its own: give either the mixer or parts.cross, not both")
        if design.cross:
            if design.max_tokens is None or set(design.max_tokens) != {self.name, *self.others}:
                raise ValueError(
                    "mixer='gmlp' needs max_tokens for every modality, such as "
                    f"{dict.fromkeys((self.name, *self.others), 64)}, got {design.max_tokens}"
                )
            self.spatial = SpatialMixer(self.name, design.max_tokens, design.dim, design.hidden)
            self.dropout_sites = (*self.dropout_sites, "cross_feed")

    def cross(self, state: State, normed: State, slots: Slots, context: Context) -> Tensor:
        z = state[self.name]
        term = self.spatial(normed, context["masks"])
        return z + _kept(term, context["keep"].get(self.name, {}).get("cross_feed"))

    def attention(self, slots: Slots, context: Context) -> dict[str, Tensor]:
        return Side.attention(self, slots, context) if self.uses_cross else super().attention(slots, context)

    def check(self, lengths: Mapping[str, int]) -> None:
        if self.uses_cross:
            self.spatial.check_length(lengths)


class VectorSide(Side):
    """The vector form: u = MLP([f(x), z, z_others]), one vector per modality; absent others have a learned stand-in."""

    mixing = "an MLP"
    dropout_sites = ("mlp",)

    def __init__(self, name: str, width: int, modalities: Sequence[str], design: Design, parts: Parts) -> None:
        if parts.own is not None or parts.cross is not None:
            raise ValueError("mixer='mlp' has neither S nor M to replace: only parts.inject can be given")
        super().__init__(name, design, (), parts.inject or PooledInjection(width, design.dim))
        self.readable = [other for other in modalities if (design.own if other == name else design.cross)]
        self.mlp = MLP((1 + len(self.readable)) * design.dim, design.hidden, design.dim)
        others = [other for other in self.readable if other != name]
        self.stand_ins = nn.ParameterDict({other: nn.Parameter(torch.zeros(design.dim)) for other in others})

    def propose(self, state: State, normed: State, slots: Slots, context: Context) -> Tensor:
        seen = [
            state[other]
            if other == self.name
            else or_stand_in(state[other], context["masks"].get(other), self.stand_ins[other])
            for other in self.readable
        ]
        term = self.mlp(torch.cat([context["injection"][self.name], *seen], dim=-1))
        return _kept(term, context["keep"].get(self.name, {}).get("mlp"))

    def enter(self, x: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"] | None) -> Tensor:
        return self.inject(x, mask)

    def state_mask(self, mask: Bool[Tensor, "B N"]) -> Tensor:
        return mask.any(1)


SIDES: Mapping[str, Callable[[str, int, Sequence[str], Design, Parts], Side]] = {
    "attention": AttentionSide,
    "gmlp": SpatialSide,
    "mlp": VectorSide,
}


def part_of(linear: nn.Module, first: int, last: int) -> Callable[[Tensor], Tensor]:
    """The outputs `first` to `last` of a linear layer alone."""
    if isinstance(linear, nn.Linear):
        bias = None if linear.bias is None else linear.bias[first:last]
        return partial(F.linear, weight=linear.weight[first:last], bias=bias)
    return linear.part(first, last)  # type: ignore[operator]


def has_parts(linear: nn.Module | None) -> bool:
    """May it be called piece by piece? Not where somebody listens to its calls, or has put another layer around it."""
    plain = type(linear) is nn.Linear or hasattr(linear, "part")
    return linear is not None and plain and not (linear._forward_hooks or linear._forward_pre_hooks)


def _kept(term: Tensor, keep: Tensor | None) -> Tensor:
    return term if keep is None else term * keep


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
