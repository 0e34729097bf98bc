"""Readouts turn states into a summary: pooled concatenation, first tokens, a cross-attention merge, its control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from meq.core.state import Masks, State, token_mask
from meq.models.blocks import Attention, masked_mean, or_stand_in, readable_keys
from meq.options import nearest


class PooledReadout(nn.Module):
    """The mean of each state's real tokens; where a modality is absent, a learned stand-in."""

    def __init__(self, modalities: Sequence[str], dim: int) -> None:
        super().__init__()
        self.stand_ins = nn.ParameterDict({name: nn.Parameter(torch.zeros(dim)) for name in modalities})

    def forward(self, state: State, masks: Masks) -> dict[str, Float[Tensor, "B D"]]:
        pooled = {}
        for name, z in state.items():
            mask = masks.get(name)
            mean = z if z.ndim == 2 else masked_mean(z, mask if mask is None or mask.ndim == 2 else mask[:, None])
            pooled[name] = or_stand_in(mean, mask, self.stand_ins[name])
        return pooled


class FirstTokenReadout(PooledReadout):
    """The state of each modality's first real token: a question that stands there reads for itself what it asks."""

    def forward(self, state: State, masks: Masks) -> dict[str, Float[Tensor, "B D"]]:
        read = {}
        for name, z in state.items():
            mask = masks.get(name)
            if z.ndim == 3:
                place = token_mask(mask, z).int().argmax(1)
                z = z.gather(1, place[:, None, None].expand(-1, 1, z.shape[2]))[:, 0]
            read[name] = or_stand_in(z, mask, self.stand_ins[name])
        return read


class MergedReadout(PooledReadout):
    """z_a + Attention_a(z_a, z_others) before pooling: mixing once more after the iteration."""

    def __init__(self, modalities: Sequence[str], dim: int, heads: int) -> None:
        super().__init__(modalities, dim)
        self.attention = nn.ModuleDict({name: Attention(dim, heads) for name in modalities})

    def forward(self, state: State, masks: Masks) -> dict[str, Float[Tensor, "B D"]]:
        # a vector is one token of its own sample: as (B D) attention would take the batch for the tokens
        tokens = {name: z if z.ndim == 3 else z[:, None] for name, z in state.items()}
        merged = {}
        for name, z in tokens.items():
            others = self.read_by(name, tokens)
            keys, someone = readable_keys(others, tokens, masks)
            mixed = self.attention[name](z, torch.cat([tokens[other] for other in others], dim=1), keys)
            if someone is not None:
                mixed = torch.where(someone[:, None, None], mixed, 0)
            merged[name] = z + mixed
        return super().forward(merged, masks)

    def read_by(self, name: str, state: State) -> list[str]:
        return [other for other in state if other != name]


class ControlReadout(MergedReadout):
    """The merge's capacity-matched control: the same attention reading its own state, so no cross-modal path."""

    def read_by(self, name: str, state: State) -> list[str]:
        return [name]


READOUTS: Mapping[str, type[PooledReadout]] = {
    "pooled": PooledReadout,
    "first": FirstTokenReadout,
    "merge": MergedReadout,
    "control": ControlReadout,
}


def make_readout(kind: str, modalities: Sequence[str], dim: int, heads: int) -> PooledReadout:
    if kind not in READOUTS:
        raise ValueError(f"there is no readout {kind!r}: {nearest(kind, READOUTS)}")
    if kind in ("pooled", "first"):
        return READOUTS[kind](modalities, dim)
    return READOUTS[kind](modalities, dim, heads)  # type: ignore[call-arg]
