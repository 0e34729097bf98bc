"""Anybody's batches, read into one form: what the model is called with, the target, weights and names of the samples.

A batch is a dict with `features` (a dict by modality) and `target`, and if there are any `masks`, `weight` and `ids`;
or a tuple (features, target); or what `DataSet.collate` makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from meq.data.contract import Batch
from meq.options import nearest
from meq.training.updates import TrainingError

KEYS = ("features", "masks", "target", "weight", "ids")
"""What a batch may have; a module that is no model of meq may have further keys, of its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedBatch:
    """A batch on the model's device."""

    given: Any
    """As the loader gave it: the whole dict, or the features of a tuple."""
    features: Any
    masks: Any
    target: Tensor
    weight: Float[Tensor, " B"] | None
    ids: Sequence[str]
    place: str
    """Where it stood, for errors: "batch 3 of train_loader in epoch 0"."""

    def __len__(self) -> int:
        return len(self.target)


def loaded_batches(
    loader: Iterable[Any], label: str, *, device: torch.device, epoch: int, strict: bool
) -> Iterator[LoadedBatch]:
    """The batches of one walk through a loader. With `strict`, a key that no batch of meq has is an error.

    `label` is the loader's name in errors.
    """
    seen = 0
    for number, given in enumerate(loader):
        batch = _loaded(given, f"batch {number} of {label} in epoch {epoch}", device=device, strict=strict, first=seen)
        seen += len(batch)
        yield batch
    if not seen:
        again = "" if epoch == 0 else ", though it had some before: it can be walked only once. Give one that can"
        raise TrainingError(f"{label} gave no batch in epoch {epoch}{again}")


def check_loader(loader: Any, label: str) -> None:
    """An error for what is no loader, or can be walked once only: every epoch needs its batches anew."""
    if not isinstance(loader, Iterable):
        raise TypeError(f"`{label}` must be an iterable of batches, such as a DataLoader, got {type(loader).__name__}")
    if isinstance(loader, Mapping | str):
        raise TypeError(f"`{label}` must be an iterable of batches, got one {type(loader).__name__}: put it in a list")
    if isinstance(loader, Iterator):
        raise ValueError(
            f"`{label}` is a {type(loader).__name__}, which is empty after the first epoch: give a list, a DataLoader, "
            "or an object whose __iter__ begins anew"
        )


def count_batches(loader: Iterable[Any]) -> int:
    """How many batches an epoch has; a loader that does not say is walked once."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return sum(1 for _ in loader)


def _loaded(given: Any, place: str, *, device: torch.device, strict: bool, first: int) -> LoadedBatch:
    parts, whole = _parts(given, place, strict)
    target = _as_tensor(parts["target"], "target", place)
    ids = [f"{first + row}" for row in range(len(target))] if parts.get("ids") is None else [*map(str, parts["ids"])]
    if len(ids) != len(target):
        raise ValueError(f"{place}: there are {len(ids)} ids and {len(target)} targets, one of each per sample")
    weight = None if parts.get("weight") is None else _checked_weight(parts["weight"], len(target), place)
    return LoadedBatch(
        given=moved(given if whole else parts["features"], device),
        features=moved(parts.get("features"), device),
        masks=moved(parts.get("masks"), device),
        target=target.to(device),
        weight=None if weight is None else weight.to(device),
        ids=ids,
        place=place,
    )


def _parts(given: Any, place: str, strict: bool) -> tuple[Mapping[str, Any], bool]:
    """A batch's parts by key, and whether the model may have all of it."""
    if isinstance(given, Batch):
        return vars(given), True
    if isinstance(given, list | tuple) and len(given) == 2:
        return {"features": given[0], "target": given[1]}, False
    if not isinstance(given, Mapping):
        size = f" of {len(given)}" if isinstance(given, list | tuple) else ""
        raise TypeError(
            f"{place} is a {type(given).__name__}{size}: a batch is a dict with 'features' and 'target', or a tuple "
            "(features, target)"
        )
    for key in given if strict else ():
        if key not in KEYS:
            raise ValueError(f"{place} has the unknown key {key!r}: {nearest(str(key), KEYS)}")
    for key in ("target", "features") if strict else ("target",):
        if key not in given:
            raise ValueError(f"{place} has no {key!r}: {nearest(key, map(str, given))}")
    return given, True


def _checked_weight(weight: Any, count: int, place: str) -> Tensor:
    weight = _as_tensor(weight, "weight", place).float()
    if weight.shape != (count,):
        raise ValueError(
            f"{place}: `weight` has shape {tuple(weight.shape)}, with {count} targets it must be ({count},)"
        )
    if not bool((weight.isfinite() & (weight >= 0)).all()):
        raise ValueError(f"{place}: `weight` must be 0 or positive, and finite")
    return weight


def _as_tensor(value: Any, key: str, place: str) -> Tensor:
    try:
        made = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{place}: {key!r} cannot be made a tensor: {error!s:.120}") from error
    if not made.ndim or not len(made):
        raise ValueError(f"{place}: {key!r} has shape {tuple(made.shape)}: give one value per sample, of one at least")
    return made


def moved(value: Any, device: torch.device) -> Any:
    """The tensors in a batch on that device; what is no tensor, and holds none, stays as it is."""
    if isinstance(value, Tensor | Batch):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: moved(each, device) for key, each in value.items()}
    if isinstance(value, list | tuple):
        parts = [moved(each, device) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
