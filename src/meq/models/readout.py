"""From states to a summary: pooled concatenation, a cross-attention merge, and the merge's control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from meq.blocks.attention import Attention
from meq.blocks.pool import masked_mean
from meq.core.options import nearest
from meq.core.state import Masks, State
from meq.models.masks import readable_keys


class Pooled(nn.Module):
    """The mean of each state's real tokens; where a modality is absent, a learned stand-in."""

    def __init__(self, modalities: Sequence[str], dim: int) -> None:
        super().__init__()
        self.stand_ins = nn.ParameterDict({name: nn.Parameter(torch.zeros(dim)) for name in modalities})

    def forward(self, state: State, masks: Masks) -> dict[str, Float[Tensor, "B D"]]:
        return {name: self._pool(name, z, masks.get(name)) for name, z in state.items()}

    def _pool(self, name: str, z: Tensor, mask: Tensor | None) -> Float[Tensor, "B D"]:
        mean = z if z.ndim == 2 else masked_mean(z, mask if mask is None or mask.ndim == 2 else mask[:, None])
        if mask is None:
            # touched on purpose: a parameter that some steps do not use would break distributed training
            return mean + 0 * self.stand_ins[name]
        present = mask if mask.ndim == 1 else mask.any(1)
        return torch.where(present[:, None], mean, self.stand_ins[name].to(mean.dtype))


class Merged(Pooled):
    """z_a + Attention_a(z_a, z_others) before pooling: mixing once more after the iteration."""

    def __init__(self, modalities: Sequence[str], dim: int, heads: int) -> None:
        super().__init__(modalities, dim)
        self.attention = nn.ModuleDict({name: Attention(dim, heads) for name in modalities})

    def forward(self, state: State, masks: Masks) -> dict[str, Float[Tensor, "B D"]]:
        # a vector is one token of its own sample: as (B D) attention would take the batch for the tokens
        tokens = {name: z if z.ndim == 3 else z[:, None] for name, z in state.items()}
        return super().forward({name: self._mixed(name, tokens, masks) for name in tokens}, masks)

    def read_by(self, name: str, state: State) -> list[str]:
        return [other for other in state if other != name]

    def _mixed(self, name: str, state: State, masks: Masks) -> Tensor:
        others = self.read_by(name, state)
        keys, someone = readable_keys(others, state, masks)
        mixed = self.attention[name](state[name], torch.cat([state[other] for other in others], dim=1), keys)
        if someone is not None:
            mixed = torch.where(someone[:, None, None], mixed, 0)
        return state[name] + mixed


class Control(Merged):
    """The merge's capacity-matched control: the same attention reading its own state, so no cross-modal path."""

    def read_by(self, name: str, state: State) -> list[str]:
        return [name]


READOUTS: Mapping[str, type[Pooled]] = {"pooled": Pooled, "merge": Merged, "control": Control}


def make_readout(kind: str, modalities: Sequence[str], dim: int, heads: int) -> Pooled:
    if kind not in READOUTS:
        raise ValueError(f"there is no readout {kind!r}: {nearest(kind, READOUTS)}")
    return Pooled(modalities, dim) if kind == "pooled" else READOUTS[kind](modalities, dim, heads)  # type: ignore[call-arg]
