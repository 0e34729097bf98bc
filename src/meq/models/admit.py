"""What users hand to a model, checked and brought into one form: tokens and masks for every modality.

After this step a modality is always (B N W) with zeros on padding; a vector is one token; a modality that a sample
lacks is a row whose mask is False throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from meq.core.state import under_autocast
from meq.options import nearest

Features = dict[str, Tensor]
TokenMasks = dict[str, Bool[Tensor, "B _"]]


def admit(
    features: Mapping[str, Any],
    masks: Mapping[str, Any] | None,
    widths: Mapping[str, int],
    *,
    like: Tensor | None = None,
) -> tuple[Features, TokenMasks]:
    """Features and masks in the models' form; everything wrong with them is an error that names the modality.

    `like` is a tensor in the dtype and on the device of the model.
    """
    features, masks = as_tensors(features, masks, like)
    batch = _checked_size(features, masks, widths)
    first = next(iter(features.values()))
    tokens: Features = {}
    real: TokenMasks = {}
    for name, width in widths.items():
        if name not in features:  # absent for the whole batch
            tokens[name] = first.new_zeros(batch, 1, width)
            real[name] = torch.zeros(batch, 1, dtype=torch.bool, device=first.device)
            continue
        x = _as_tokens(name, features[name], width, like)
        if name in masks:
            real[name] = _as_token_mask(name, masks[name], x)
            x = x.masked_fill(~real[name][..., None], 0)
        tokens[name] = x
    if not torch.compiler.is_compiling() and first.device.type != "meta":
        _check_values(tokens, real)
    return tokens, real


def as_tensors(features: Any, masks: Any, like: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Both as dicts of tensors: NumPy arrays and lists are converted, anything else is an error that names it."""
    for label, given in (("features", features), ("masks", {} if masks is None else masks)):
        if not isinstance(given, Mapping):
            raise TypeError(
                f"{label} must be a dict from modality to tensor, such as {{'image': x, 'text': y}}; got {_kind(given)}"
            )
    return (
        {name: _as_tensor(name, x, like) for name, x in features.items()},
        {name: _as_mask(name, mask, like) for name, mask in (masks or {}).items()},
    )


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


def _as_tensor(name: str, x: Any, like: Tensor | None) -> Tensor:
    """Lists and arrays get the model's dtype, as they have none that was chosen for it. Whole numbers in arrays keep
    theirs, to be refused as in tensors: they are ids more often than features."""
    if isinstance(x, Tensor):
        return x
    if x is None:
        raise TypeError(f"{name!r} is None: leave its key out where the whole batch lacks it, or mask single samples")
    if not isinstance(x, np.ndarray | list | tuple):
        read = ": a model reads numbers, so encode it first, see meq.encoders" if isinstance(x, str | bytes) else ""
        raise TypeError(f"{name!r} must be a tensor of features, got {_kind(x)}{read}")
    whole = isinstance(x, np.ndarray) and x.dtype.kind not in "fV"
    dtype = None if whole else torch.get_default_dtype() if like is None else like.dtype
    try:
        made = torch.as_tensor(np.array(x) if isinstance(x, np.ndarray) else x, dtype=dtype)
        return made if like is None else made.to(like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name!r} cannot be made a tensor of features: {error!s:.120}. Give rows of one length, numbers only"
        ) from error


def _as_mask(name: str, mask: Any, like: Tensor | None) -> Tensor:
    if isinstance(mask, Tensor):
        return mask
    if not isinstance(mask, np.ndarray | list | tuple):
        raise TypeError(f"the mask of {name!r} must be a boolean tensor (True = real token), got {_kind(mask)}")
    try:
        return torch.as_tensor(mask, device="cpu" if like is None else like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the mask of {name!r} cannot be made a tensor: {error!s:.120}") from error


def _kind(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{'a tensor' if isinstance(value, Tensor) else 'an array'} of shape {tuple(value.shape)}"
    return f"{type(value).__name__}: {value!r:.40}"


def _checked_size(features: Mapping[str, Tensor], masks: Mapping[str, Tensor], widths: Mapping[str, int]) -> int:
    """The size of the batch, once the names of features and masks are known and all modalities agree on it."""
    if not features:
        raise ValueError(f"no features were given; this model reads {', '.join(widths)}")
    for label, given in (("features", features), ("masks", masks)):
        for name in given:
            if name not in widths:
                raise ValueError(f"{label} has the unknown modality {name!r}: {nearest(name, widths)}")
    for name in masks:
        if name not in features:
            raise ValueError(f"there is a mask for {name!r} but no features; leave both out where it is absent")
    sizes = {name: x.shape[0] for name, x in features.items() if x.ndim > 0}
    first = next(iter(sizes.values()), 0)
    if any(size != first for size in sizes.values()):  # no set of them: while a model is exported they are symbols
        raise ValueError(f"the modalities have different batch sizes: {sizes}")
    if first == 0:
        raise ValueError("the batch is empty: features have no samples")
    return first


def _as_tokens(name: str, x: Tensor, width: int, like: Tensor | None) -> Tensor:
    """Tokens of the right width, on the model's device and in its dtype. Autocast converts dtypes by itself."""
    if x.ndim not in (2, 3) or x.shape[-1] != width or not x.is_floating_point():
        mend = "" if x.is_floating_point() else ": use .float() if these are features, and an encoder if they are ids"
        raise ValueError(
            f"{name!r} must be floating-point tokens (B N {width}) or vectors (B {width}), "
            f"got {x.dtype} of shape {tuple(x.shape)}{mend}"
        )
    x = x[:, None] if x.ndim == 2 else x
    if x.shape[1] == 0:
        raise ValueError(f"{name!r} has no tokens: leave it out, or give one token and a mask of False")
    if like is not None and x.device != like.device:
        raise ValueError(
            f"{name!r} is on {x.device}, the model on {like.device}: move one of them with .to({str(like.device)!r})"
        )
    if like is not None and x.dtype != like.dtype and like.is_floating_point() and not under_autocast(x):
        mend = {torch.float32: ".float()", torch.float64: ".double()"}.get(like.dtype, f".to({like.dtype})")
        raise TypeError(
            f"{name!r} is {x.dtype}, the model's weights are {like.dtype}: give the features as {mend}, "
            f"or the model as model.to({x.dtype})"
        )
    return x


def _as_token_mask(name: str, mask: Tensor, x: Tensor) -> Bool[Tensor, "B N"]:
    if mask.dtype != torch.bool:
        raise TypeError(f"the mask of {name!r} must be boolean (True = real token), got {mask.dtype}: use .bool()")
    if mask.device != x.device:
        raise ValueError(f"the mask of {name!r} is on {mask.device}, its features are on {x.device}")
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
    """Every number finite, every sample with a modality. One answer tells, so that an accelerator is waited for once;
    what is wrong is looked for only if something is."""
    present = torch.stack([_present(name, tokens, real) for name in tokens]).any(0)
    # a sum is finite only if every entry is (or they cancel, which NaN and inf never do): one pass, no temporary
    sums = torch.stack([x.sum(dtype=torch.promote_types(x.dtype, torch.float32)) for x in tokens.values()])
    if bool(torch.isfinite(sums).all() & present.all()):
        return
    for name, x in tokens.items():
        if not bool(torch.isfinite(x).all()):  # the sum alone may overflow
            rows = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
            raise ValueError(f"{name!r} has NaN or infinite features in rows {rows[:8]}: mend or mask them")
    if bool((~present).any()):
        rows = (~present).nonzero().flatten().tolist()
        raise ValueError(f"rows {rows[:8]} have no modality at all: a sample needs at least one real token")


def _present(name: str, tokens: Features, real: TokenMasks) -> Bool[Tensor, " B"]:
    if name in real:
        return real[name].any(1)
    return torch.ones(tokens[name].shape[0], dtype=torch.bool, device=tokens[name].device)
