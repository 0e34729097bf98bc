"""One contract for every data set: what an example is, how examples become a batch, what a set says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from meq.data.metrics import Metric


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """One sample: features per modality, tokens (N W) or a vector (W); a modality it lacks is left out."""

    id: str
    features: Mapping[str, Tensor]
    target: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Examples padded to the longest of each modality; masks say what is real."""

    ids: list[str]
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    target: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        return Batch(
            ids=self.ids,
            features={name: x.to(device) for name, x in self.features.items()},
            masks={name: mask.to(device) for name, mask in self.masks.items()},
            target=self.target.to(device),
        )


Split = Sequence[Example]


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Named splits and what a model and an objective need to know about them."""

    name: str
    splits: Mapping[str, Split]
    widths: Mapping[str, int]
    labels: Sequence[str]
    head: str
    metric: Metric
    facts: Mapping[str, Any] = field(default_factory=dict)
    """How it was made; part of the fingerprint's meaning, and of every record."""

    def fingerprint(self) -> str:
        """A hash of every example's id, features and target, split by split."""
        digest = hashlib.sha256()
        for name, split in self.splits.items():
            digest.update(f"{name}:{len(split)};".encode())
            for example in split:
                digest.update(example.id.encode())
                for modality, x in (*sorted(example.features.items()), ("", example.target)):
                    digest.update(f"{modality}{tuple(x.shape)}{x.dtype}".encode())
                    digest.update(x.contiguous().numpy().tobytes())
        return digest.hexdigest()


def collate(examples: Sequence[Example], widths: Mapping[str, int]) -> Batch:
    """Pad and stack. A modality that nobody in the batch has stays out; a mask is made only where one is needed."""
    features: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for name, width in widths.items():
        rows = [_tokens(example, name, width) for example in examples]
        longest = max(len(row) for row in rows)
        if longest == 0:
            continue
        features[name] = torch.stack([torch.nn.functional.pad(row, (0, 0, 0, longest - len(row))) for row in rows])
        if any(len(row) < longest for row in rows):
            lengths = torch.tensor([len(row) for row in rows])
            masks[name] = torch.arange(longest) < lengths[:, None]
    target = torch.stack([example.target for example in examples])
    return Batch(ids=[example.id for example in examples], features=features, masks=masks, target=target)


def _tokens(example: Example, name: str, width: int) -> Tensor:
    x = example.features.get(name)
    if x is None:
        return torch.zeros(0, width)
    if x.shape[-1] != width or x.ndim > 2:
        raise ValueError(
            f"example {example.id!r}: {name!r} has shape {tuple(x.shape)}, expected (N, {width}) or ({width},)"
        )
    return x[None] if x.ndim == 1 else x
