"""A modality taken away from everybody: its features are zero, and its tokens are still there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from meq.core.options import nearest
from meq.data.content import Content
from meq.data.contract import DataSet, Example, Rows, tensors_of
from meq.data.findings import DataError


def blank(data: DataSet, modalities: Sequence[str]) -> DataSet:
    """The data set with zeros in place of these modalities' features; how many tokens there are can still be seen.

    Choices become equal to each other, in length too: else the longest one could be told from the others.
    """
    for name in modalities:
        if name not in data.modalities:
            raise DataError(f"{data.name} has no modality {name!r} to blank: {nearest(name, data.modalities)}")
        if data.modalities[name].width is None:
            raise DataError(f"{data.name}: {name!r} is blanked after encoding, and is not encoded yet")
    if set(modalities) >= set(data.modalities):
        raise DataError(f"{data.name}: with {', '.join(modalities)} blank there is nothing left to learn from")

    def make(example: Example) -> Example:
        zeros = {name: _zeros(x, name, example) for name, x in example.content.items() if name in modalities}
        return dataclasses.replace(example, content={**example.content, **zeros})

    splits = {name: Rows(split, make) for name, split in data.splits.items()}
    return dataclasses.replace(data, splits=splits, facts={**data.facts, "blank": list(modalities)})


def _zeros(content: Content, name: str, example: Example) -> Content:
    if isinstance(content, Tensor):
        return torch.zeros_like(content)
    found = tensors_of(content)
    if not isinstance(content, tuple) or len(found) < len(content):
        # what is not understood must not go through as it is: the record would say that it was blank
        raise DataError(f"example {example.id!r}: {name!r} is a {type(content).__name__}, which cannot be blanked")
    longest = max(found, key=lambda x: x.shape[0] if x.ndim > 1 else 1)
    return tuple(torch.zeros_like(longest) for _ in found)
