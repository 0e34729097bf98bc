"""Which tokens may be read, in a form that attention can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from meq.core.state import State


def readable_keys(
    names: Sequence[str], state: State | Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> tuple[Bool[Tensor, "B M"] | None, Bool[Tensor, " B"] | None]:
    """The mask over the concatenated tokens of `names`, and who has anybody to read at all; None means everything.

    A sample with nobody to read keeps all its keys, since a softmax over nothing is NaN; its result must be dropped.
    """
    if not any(name in masks for name in names):
        return None, None
    keys = torch.cat([_mask(name, state, masks) for name in names], dim=1)
    someone = keys.any(1)
    return keys | ~someone[:, None], someone


def _mask(name: str, state: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Bool[Tensor, "B N"]:
    shape = state[name].shape[:2]
    if name not in masks:
        return torch.ones(shape, dtype=torch.bool, device=state[name].device)
    mask = masks[name]
    return mask if mask.ndim == 2 else mask[:, None].expand(shape)
