"""Each modality's share of an answer: Shapley values over the modalities, absent ones replaced by their stand-ins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.faithfulness import sureness
from meq.analysis.subject import held_still

MOST = 8
"""Modalities of which all subsets are asked; more would take more than a few hundred answers."""


def modality_effects(
    model: Any, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None
) -> dict[str, Float[Tensor, " B"]]:
    """What each modality adds to the answer's probability, in fair shares; NaN where a sample lacks it.

    phi_m = sum over sets S without m of |S|! (n - |S| - 1)! / n! (v(S + m) - v(S)), with v(S) the probability of the
    answer to the whole sample when only the modalities of S are there, and chance when none is. The effects add up to
    the answer's probability above chance. For a number v is minus the distance to the whole answer, and -|answer| when
    nothing is there. A model that was trained without modality dropout has never seen a modality missing.
    """
    names = list(features)
    if len(names) > MOST:
        raise ValueError(f"{len(names)} modalities have too many subsets to ask about: {MOST} at most")
    given = {name: _present(features[name], (masks or {}).get(name)) for name in names}
    with torch.no_grad(), held_still(model):
        whole = model(features, masks).logits
        worth = {
            chosen: _worth(model, features, dict(masks or {}), given, chosen, whole)
            for size in range(len(names) + 1)
            for chosen in itertools.combinations(names, size)
        }
    effects = {name: _shapley(name, names, worth) for name in names}
    return {name: values.where(given[name].cpu(), torch.nan) for name, values in effects.items()}


def as_shares(effects: Mapping[str, float]) -> dict[str, float]:
    """Sizes of the effects as shares of their sum; modalities that are not there are left out."""
    sizes = {name: abs(value) for name, value in effects.items() if math.isfinite(value)}
    total = sum(sizes.values())
    return {name: size / total if total > 0 else math.nan for name, size in sizes.items()}


def _worth(
    model: Any,
    features: Mapping[str, Tensor],
    masks: dict[str, Tensor],
    given: Mapping[str, Tensor],
    chosen: tuple[str, ...],
    whole: Tensor,
) -> Float[Tensor, " B"]:
    """v(S) per sample; where a sample has none of the chosen modalities, that of an answer to nothing."""
    nothing = _nothing(whole, model.head_kind)
    if not chosen:
        return nothing
    some = torch.stack([given[name] for name in chosen]).any(0)
    hidden = {name: _hide(x, masks.get(name), some) for name, x in features.items() if name not in chosen}
    logits = model(features, {**masks, **hidden}).logits
    return sureness(logits, whole, model.head_kind).where(some.cpu(), nothing)


def _hide(x: Tensor, mask: Tensor | None, where: Tensor) -> Tensor:
    """A mask of nothing, but for samples that would be left without any modality."""
    shape = x.shape[:-1] if x.ndim > 2 else x.shape[:1]
    real = torch.ones(shape, dtype=torch.bool, device=x.device)
    real = real if mask is None else real & mask.reshape(mask.shape + (1,) * (real.ndim - mask.ndim))
    return real & ~where.reshape(-1, *[1] * (real.ndim - 1))


def _nothing(whole: Tensor, head: str) -> Float[Tensor, " B"]:
    if head == "score":
        return -whole[:, 0].abs().double().cpu()
    return torch.full((len(whole),), 0.5 if head == "labels" else 1 / whole.shape[1], dtype=torch.float64)


def _present(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    return mask.reshape(len(x), -1).any(1)


def _shapley(name: str, names: list[str], worth: Mapping[tuple[str, ...], Tensor]) -> Float[Tensor, " B"]:
    others, count = [other for other in names if other != name], len(names)
    total = torch.zeros_like(worth[()])
    for size in range(count):
        weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
        for chosen in itertools.combinations(others, size):
            joined = tuple(each for each in names if each in chosen or each == name)
            total += weight * (worth[joined] - worth[chosen])
    return total
