"""A modality taken away from everybody: its features are zero, and its tokens are still there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from meq.core.options import nearest
from meq.data.contract import DataSet, Example, Rows
from meq.data.findings import DataError


def blank(data: DataSet, modalities: Sequence[str]) -> DataSet:
    """The data set with zeros in place of these modalities' features; how many tokens there are can still be seen."""
    for name in modalities:
        if name not in data.modalities:
            raise DataError(f"{data.name} has no modality {name!r} to blank: {nearest(name, data.modalities)}")
        if data.modalities[name].width is None:
            raise DataError(f"{data.name}: {name!r} is blanked after encoding, and is not encoded yet")
    if set(modalities) >= set(data.modalities):
        raise DataError(f"{data.name}: with {', '.join(modalities)} blank there is nothing left to learn from")

    def make(example: Example) -> Example:
        contents = example.content.items()
        zeros = {name: torch.zeros_like(x) for name, x in contents if name in modalities and isinstance(x, Tensor)}
        return dataclasses.replace(example, content={**example.content, **zeros})

    splits = {name: Rows(split, make) for name, split in data.splits.items()}
    return dataclasses.replace(data, splits=splits, facts={**data.facts, "blank": list(modalities)})
