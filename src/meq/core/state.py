"""A state is a dict from modality name to tensor. Here states are measured and compared, sample by sample.

Modalities are never concatenated: each keeps its own shape, tokens (B N D) or vectors (B D). A mask (B N, or B for a
vector) is True where a token is real; what it hides counts in no norm and in no product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils import _pytree as pytree

from meq.options import nearest

State = dict[str, Tensor]
"""A state: by modality, a tensor of tokens (B N D) or of vectors (B D), batch first.

>>> state: meq.State = {"image": torch.zeros(2, 5, 16), "text": torch.zeros(2, 4, 16)}
"""
Masks = Mapping[str, Tensor]

NO_MASKS: Masks = {}
SMALL = 1e-15
"""Norms below this are made of squares that float32 can hardly tell from 0, or from each other."""


def norm(x: Tensor, mask: Tensor | None = None) -> Float[Tensor, " B"]:
    """|x| per sample over the real tokens, in float32 or better."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    if mask is None:
        return torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)), dtype=dtype)
    if mask.ndim < x.ndim:
        x = torch.linalg.vector_norm(x, dim=tuple(range(mask.ndim, x.ndim)), dtype=dtype)
    x = x.masked_fill(~mask, 0)  # not a product: 0 * inf on padding would be NaN
    return x if x.ndim == 1 else torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)))


def lone_norm(x: Tensor, mask: Tensor | None = None) -> float:
    """As `norm`, for a batch of one, where calls cost more than arithmetic: a norm over all axes is the cheaper one."""
    if mask is not None or x.dtype not in (torch.float32, torch.float64):
        return norm(x, mask).item()
    return torch.linalg.vector_norm(x).item()


def large_norm(x: Tensor, mask: Tensor | None = None) -> Float[Tensor, " B"]:
    """As `norm`, but right for entries whose squares overflow or vanish; costs one more pass."""
    if mask is not None:
        x = x.masked_fill(~per_sample(mask, x), 0)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    largest = x.abs().amax(dim=tuple(range(1, x.ndim)))
    scale = torch.where(torch.isfinite(largest) & (largest > 0), largest, 1)
    return scale * norm(x / per_sample(scale, x))


def sound(size: Tensor) -> Bool[Tensor, "*axes"]:
    """Is a norm what it says? Squares of very large entries overflow, those of very small ones vanish."""
    return (size > SMALL) & (size < math.inf)


def sound_norm(x: Tensor, mask: Tensor | None = None) -> Float[Tensor, " B"]:
    """`norm` where that is sound, else `large_norm`: right at every magnitude, and no slower at the usual ones."""
    size = norm(x, mask)
    if torch.compiler.is_compiling() or x.device.type == "meta":
        return size
    usual = sound(size)
    return size if bool(usual.all()) else torch.where(usual, size, large_norm(x, mask))


def magnitude(x: Tensor, mask: Tensor | None = None) -> Float[Tensor, " B"]:
    """The largest entry of each sample, in float32 or better."""
    if mask is not None:
        x = x.masked_fill(~per_sample(mask, x), 0)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return torch.linalg.vector_norm(x, math.inf, dim=tuple(range(1, x.ndim)), dtype=dtype)


def dots(many: Sequence[State], one: State, masks: Masks) -> Float[Tensor, "B M"]:
    """<x_i, y> per sample of many states x_i with one state y, summed over the modalities, in float32 or better."""
    return functools.reduce(torch.add, [_dots([x[name] for x in many], one[name], masks.get(name)) for name in one])


def _dots(many: list[Tensor], one: Tensor, mask: Tensor | None) -> Float[Tensor, "B M"]:
    dtype = torch.promote_types(one.dtype, torch.float32)
    if mask is not None:
        hidden = ~per_sample(mask, one)
        many, one = [x.masked_fill(hidden, 0) for x in many], one.masked_fill(hidden, 0)
    if one.dtype != dtype:
        many, one = [x.to(dtype) for x in many], one.to(dtype)
    axes = tuple(range(1, one.ndim))
    # Neither vecdot nor a matrix product: autocast, or a lowered matmul precision, would make those rough.
    return torch.stack([(x * one).sum(axes) for x in many], dim=-1)


def all_finite(state: State, masks: Masks) -> Bool[Tensor, " B"]:
    """Per sample: is every real entry of every modality finite?"""
    rows = []
    for name, x in state.items():
        finite = torch.isfinite(x)
        if name in masks:
            finite = finite | ~per_sample(masks[name], x)
        rows.append(finite.flatten(1).all(1))
    return torch.stack(rows).all(0)


def choose(rows: Bool[Tensor, " B"], new: State, old: State) -> State:
    """`new` where `rows` is True, `old` elsewhere."""
    return {name: torch.where(per_sample(rows, old[name]), new[name], old[name]) for name in old}


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Append axes of length one, so that values per sample (or per token) broadcast over `like`."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def token_mask(mask: Tensor | None, tokens: Tensor) -> Bool[Tensor, "*axes"]:
    """Which tokens are real, in the shape of the tokens without their width; the mask is per token or per sample."""
    shape = tokens.shape[:-1]
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=tokens.device)
    if mask.ndim > len(shape):  # of a vector, which is one token
        return mask.reshape(shape)
    return mask if mask.ndim == len(shape) else mask.reshape(mask.shape + (1,) * (len(shape) - mask.ndim)).expand(shape)


def count_entries(x: Tensor, mask: Tensor | None) -> Float[Tensor, " B"]:
    """How many real entries each sample has; 0 where it lacks the modality."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    if mask is None:
        return torch.full(x.shape[:1], x.shape[1:].numel(), dtype=dtype, device=x.device)
    return mask.reshape(len(x), -1).sum(1).to(dtype) * x.shape[mask.ndim :].numel()


def take_rows(tree: Any, rows: Int[Tensor, " R"]) -> Any:
    """The given samples of every tensor in a tree of dicts, lists and tuples; scalars and other leaves stay."""

    def take(leaf: Any) -> Any:
        return leaf.index_select(0, rows) if isinstance(leaf, Tensor) and leaf.ndim > 0 else leaf

    return pytree.tree_map(take, tree)


def put_rows(state: State, rows: Int[Tensor, " R"], part: State) -> State:
    """`state` with the samples `rows` replaced by those of `part`."""
    return {name: x.index_copy(0, rows, part[name]) for name, x in state.items()}


def difference(a: State, b: State) -> State:
    return {name: a[name] - x for name, x in b.items()}


def detach(state: State) -> State:
    return {name: x.detach() for name, x in state.items()}


def under_autocast(x: Tensor) -> bool:
    """Would autocast lower the precision of work on this tensor? The meta device does not know autocast."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def is_transformed(x: Tensor) -> bool:
    """Does it stand for many tensors, or for a level of differentiation, so that it has no value to look at?"""
    functorch = torch._C._functorch
    return functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x)


def working_dtype(x: Tensor) -> torch.dtype:
    """The dtype that a state's map computes in: autocast's where it is on, else the state's own."""
    return torch.get_autocast_dtype(x.device.type) if under_autocast(x) else x.dtype


def batch_size(state: State) -> int:
    return next(iter(state.values())).shape[0]


def check_start(state: object) -> None:
    """A start is a non-empty dict of floating-point tensors that share a batch size of at least one."""
    if not isinstance(state, dict) or not state:
        raise TypeError(
            f"start() must return a dict of at least one modality, got {type(state).__name__}: {state!r:.80}"
        )
    for name, x in state.items():
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
            found = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"start() must return floating-point tensors, tokens (B N D) or vectors (B D); {name!r} is {found}"
            )
    if len({x.device for x in state.values()}) > 1:
        check_devices(state, label="start() returned ")
    sizes = {name: x.shape[0] for name, x in state.items()}
    if any(size != batch_size(state) for size in sizes.values()):
        raise ValueError(f"start() returned different batch sizes per modality: {sizes}")
    if batch_size(state) == 0:
        raise ValueError("the batch is empty: start() returned states with no samples")


def check_masks(masks: Masks, state: State) -> None:
    """A mask is boolean, on its state's device, and shaped like the state up to the tokens."""
    for name, mask in masks.items():
        if name not in state:
            raise ValueError(f"masks has the unknown modality {name!r}: {nearest(name, state)}")
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(f"the mask of {name!r} must be a boolean tensor (True = real token), got {found}")
        shape = tuple(state[name].shape)
        if tuple(mask.shape) not in (shape[:-1], shape[:1]):
            raise ValueError(
                f"the mask of {name!r} has shape {tuple(mask.shape)}; its state is {shape}, "
                f"so the mask must be {shape[:-1]} (per token) or {shape[:1]} (per sample)"
            )
        if mask.device != state[name].device:
            raise ValueError(f"the mask of {name!r} is on {mask.device}, its state on {state[name].device}")


def check_devices(tree: Any, label: str = "inputs") -> None:
    """Tensors on several devices cannot be computed with together; numbers without axes may lie anywhere."""
    found: dict[torch.device, str] = {}
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            found.setdefault(leaf.device, pytree.keystr(path))
    if len(found) > 1:
        places = " and ".join(f"{label}{path} is on {device}" for device, path in found.items())
        raise ValueError(f"{places}: move everything to one device with .to(...)")


def check_batch(inputs: Any, state: State) -> None:
    """Every input tensor must be batch-first, or a sample could not be solved without its neighbours."""
    size, device = batch_size(state), next(iter(state.values())).device
    tensors = (leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim > 0)
    if all(leaf.shape[0] == size and leaf.device == device for leaf in tensors):
        return
    for path, leaf in pytree.tree_flatten_with_path(inputs)[0]:  # slower, and only for the message
        if isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] != size:
            raise ValueError(
                f"inputs{pytree.keystr(path)} has shape {tuple(leaf.shape)}, but the state has {size} samples: "
                "every input tensor must be batch-first"
            )
        if isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.device != device:
            raise ValueError(
                f"inputs{pytree.keystr(path)} is on {leaf.device}, the state on {device}: move one of them"
            )
