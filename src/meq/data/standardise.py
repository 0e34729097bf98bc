"""Features with mean 0 and standard deviation 1, by what the train split says and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meq.core.options import nearest
from meq.data.content import Content
from meq.data.contract import DataSet, Example, Rows
from meq.data.findings import DataError
from meq.data.strict_json import parse_json


@dataclass(frozen=True, kw_only=True)
class Standardisation:
    """Mean and standard deviation of each column of each modality, over all tokens of the train split.

    Belongs to a trained model as its weights do: new samples go through the same one.
    """

    mean: Mapping[str, tuple[float, ...]]
    std: Mapping[str, tuple[float, ...]]
    """Population standard deviations; 1 for a column that does not vary, which then becomes 0."""

    def apply(self, data: DataSet) -> DataSet:
        """The data set with (x - mean) / std in place of x; examples are made when they are asked for."""
        for name, mean in self.mean.items():
            if name not in data.modalities:
                raise DataError(f"{data.name} has no modality {name!r}: {nearest(name, data.modalities)}")
            if data.modalities[name].width != len(mean):
                width = data.modalities[name].width
                raise DataError(f"{data.name}: {name!r} has width {width}, the statistics are of {len(mean)} columns")
        scales = {name: (torch.tensor(self.mean[name]), torch.tensor(self.std[name])) for name in self.mean}

        def make(example: Example) -> Example:
            changed = {name: _scaled(x, scales.get(name)) for name, x in example.content.items()}
            return dataclasses.replace(example, content=changed)

        splits = {name: Rows(split, make) for name, split in data.splits.items()}
        return dataclasses.replace(data, splits=splits, facts={**data.facts, "standardised": list(self.mean)})

    def to_json(self) -> str:
        return json.dumps({"mean": dict(self.mean), "std": dict(self.std)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Standardisation:
        try:
            values = parse_json(text)
            parts = {
                part: {name: tuple(map(float, row)) for name, row in values[part].items()} for part in ("mean", "std")
            }
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(f"not the JSON of a standardisation: {error!r}") from error
        return cls(**parts)

    def __post_init__(self) -> None:
        if {name: len(row) for name, row in self.mean.items()} != {name: len(row) for name, row in self.std.items()}:
            raise DataError("a standardisation needs as many means as standard deviations, modality by modality")
        for name, row in self.std.items():
            if not all(0 < value < float("inf") for value in row):
                raise DataError(f"the standard deviations of {name!r} must be positive and finite")


def standardise(data: DataSet) -> tuple[DataSet, Standardisation]:
    """Every features modality standardised by the train split, and the statistics; pictures and texts stay as they are.

    A row that lacks a modality has no say in its statistics. What train never has is left as it is.
    """
    if "train" not in data.splits:
        raise DataError(f"{data.name} has no train split to take statistics from; it has {', '.join(data.splits)}")
    sums = {name: _Moments(x.width) for name, x in data.modalities.items() if x.kind == "features" and x.width}
    for example in data.splits["train"]:
        for name, moments in sums.items():
            if name in example.content:
                moments.add(example.content[name], name, example.id)
    seen = {name: moments for name, moments in sums.items() if moments.count}
    found = Standardisation(
        mean={name: tuple(moments.mean.tolist()) for name, moments in seen.items()},
        std={name: tuple(moments.std().tolist()) for name, moments in seen.items()},
    )
    return found.apply(data), found


class _Moments:
    """Mean and squared deviations, one example after the other, in float64 (Welford, by blocks of tokens)."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.squares = torch.zeros(width, dtype=torch.float64)
        self.largest = torch.zeros(width, dtype=torch.float64)

    def add(self, content: Any, name: str, example: str) -> None:
        x = torch.cat([_tokens(part) for part in (content if isinstance(content, tuple) else (content,))])
        if not bool(x.isfinite().all()):
            raise DataError(f"example {example!r}: {name!r} holds numbers that are not finite")
        if not len(x):
            return
        total = self.count + len(x)
        away = x.mean(0) - self.mean
        self.squares += (x - x.mean(0)).square().sum(0) + away.square() * self.count * len(x) / total
        self.mean += away * len(x) / total
        self.largest = torch.maximum(self.largest, x.abs().amax(0))
        self.count = total

    def std(self) -> Tensor:
        """A column whose spread is below what float32 can show of its values does not vary: it is divided by 1."""
        std = (self.squares / self.count).sqrt()
        return torch.where(std > self.largest * torch.finfo(torch.float32).eps, std, 1.0)


def _tokens(x: Tensor) -> Tensor:
    return x.double().reshape(-1, x.shape[-1])


def _scaled(content: Content, scale: tuple[Tensor, Tensor] | None) -> Content:
    if scale is None:
        return content
    if isinstance(content, tuple):
        return tuple((x - scale[0]) / scale[1] for x in content if isinstance(x, Tensor))
    return (content - scale[0]) / scale[1] if isinstance(content, Tensor) else content
