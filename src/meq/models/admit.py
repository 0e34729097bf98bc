"""What users hand to a model, checked and brought into one form: tokens and masks for every modality.

After this step a modality is always (B N W) with zeros on padding; a vector is one token; a modality that a sample
lacks is a row whose mask is False throughout.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from meq.core.options import nearest

Features = dict[str, Tensor]
TokenMasks = dict[str, Bool[Tensor, "B _"]]


def admit(
    features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None, widths: Mapping[str, int]
) -> tuple[Features, TokenMasks]:
    """Features and masks in the models' form; everything wrong with them is an error that names the modality."""
    masks = dict(masks or {})
    _check_names(features, masks, widths)
    batch = _batch_size(features)
    like = next(iter(features.values()))
    tokens: Features = {}
    real: TokenMasks = {}
    for name, width in widths.items():
        if name not in features:  # absent for the whole batch
            tokens[name] = like.new_zeros(batch, 1, width)
            real[name] = torch.zeros(batch, 1, dtype=torch.bool, device=like.device)
            continue
        x = _as_tokens(name, features[name], width)
        if name in masks:
            real[name] = _as_token_mask(name, masks[name], x)
            x = x.masked_fill(~real[name][..., None], 0)
        tokens[name] = x
    if not torch.compiler.is_compiling() and like.device.type != "meta":
        _check_values(tokens, real)
    return tokens, real


def drop_modalities(tokens: Features, real: TokenMasks, chance: Bool[Tensor, "B M"]) -> tuple[Features, TokenMasks]:
    """Take modalities away where `chance` is True, never a sample's last one."""
    present = torch.stack([_present(name, tokens, real) for name in tokens], dim=1)
    dropped = chance & present
    dropped &= (present & ~dropped).any(1, keepdim=True)
    masks = {}
    for column, (name, x) in enumerate(tokens.items()):
        mask = real.get(name, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
        masks[name] = mask & ~dropped[:, column, None]
    return {name: x.masked_fill(~masks[name][..., None], 0) for name, x in tokens.items()}, masks


def _check_names(features: Mapping[str, Tensor], masks: Mapping[str, Tensor], widths: Mapping[str, int]) -> None:
    if not features:
        raise ValueError(f"no features were given; this model reads {', '.join(widths)}")
    for label, given in (("features", features), ("masks", masks)):
        for name in given:
            if name not in widths:
                raise ValueError(f"{label} has the unknown modality {name!r}: {nearest(name, widths)}")
    for name in masks:
        if name not in features:
            raise ValueError(f"there is a mask for {name!r} but no features; leave both out where it is absent")


def _batch_size(features: Mapping[str, Tensor]) -> int:
    sizes = {name: x.shape[0] for name, x in features.items() if x.ndim > 0}
    first = next(iter(sizes.values()), 0)
    if any(size != first for size in sizes.values()):
        raise ValueError(f"the modalities have different batch sizes: {sizes}")
    if first == 0:
        raise ValueError("the batch is empty: features have no samples")
    return first


def _as_tokens(name: str, x: Tensor, width: int) -> Tensor:
    if x.ndim not in (2, 3) or x.shape[-1] != width or not x.is_floating_point():
        raise ValueError(
            f"{name!r} must be floating-point tokens (B N {width}) or vectors (B {width}), "
            f"got {x.dtype} of shape {tuple(x.shape)}"
        )
    x = x[:, None] if x.ndim == 2 else x
    if x.shape[1] == 0:
        raise ValueError(f"{name!r} has no tokens: leave it out, or give one token and a mask of False")
    return x


def _as_token_mask(name: str, mask: Tensor, x: Tensor) -> Bool[Tensor, "B N"]:
    if mask.dtype != torch.bool:
        raise TypeError(f"the mask of {name!r} must be boolean (True = real token), got {mask.dtype}")
    shape = tuple(x.shape[:2])
    if tuple(mask.shape) == shape[:1]:
        mask = mask[:, None].expand(shape)
    if tuple(mask.shape) != shape:
        raise ValueError(
            f"the mask of {name!r} has shape {tuple(mask.shape)}; its features have {shape[0]} samples of {shape[1]} "
            f"tokens, so it must be {shape} (per token) or {shape[:1]} (per sample)"
        )
    return mask


def _check_values(tokens: Features, real: TokenMasks) -> None:
    for name, x in tokens.items():
        # a sum is finite only if every entry is (or they cancel, which NaN and inf never do): one pass, no temporary
        if not bool(torch.isfinite(x.sum())) and not bool(torch.isfinite(x).all()):
            rows = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
            raise ValueError(f"{name!r} has NaN or infinite features in rows {rows[:8]}: mend or mask them")
    absent = ~torch.stack([_present(name, tokens, real) for name in tokens]).any(0)
    if bool(absent.any()):
        rows = absent.nonzero().flatten().tolist()
        raise ValueError(f"rows {rows[:8]} have no modality at all: a sample needs at least one real token")


def _present(name: str, tokens: Features, real: TokenMasks) -> Bool[Tensor, " B"]:
    if name in real:
        return real[name].any(1)
    return torch.ones(tokens[name].shape[0], dtype=torch.bool, device=tokens[name].device)
