"""One picture and one text: pairs of a run's own data to begin with, and what is measured of a pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from meq.analysis.diagnosis import Diagnosis, diagnose
from meq.data.content import Picture
from meq.data.contract import Example
from meq.runs.analyze import IterationSpectrum
from meq.runs.load import TrainedRun
from meq.runs.own_data import UnknownDataError, raw_data

COUNT = 6
LOOKED_AT = 300
"""Examples of a split, from its beginning, that the pairs are chosen from."""
GENERATED = {"train": 0, "dev": 0, "test": 108}
"""Of sets that are made on the spot, so many, which any number of kinds of statements divides: thousands would keep the
page waiting."""

Tensors = Mapping[str, Tensor]
Found = tuple[Picture, str, int | None]
"""A picture, a text, and the label's number where there is one."""


@dataclass(frozen=True, kw_only=True)
class ExamplePair:
    """A picture, a caption, and another caption that has another label, of the same picture if there is one."""

    name: str
    """The caption and, where it is known, its label."""
    picture: Picture
    caption: str
    other: str


def example_pairs(run: TrainedRun, *, count: int = COUNT) -> list[ExamplePair]:
    """A few pairs with different pictures, the labels in turn; none where the data cannot be had."""
    try:
        data = raw_data(run, sizes=GENERATED)
    except UnknownDataError:
        return []
    if tuple(data.labels) != run.labels:
        return []
    split = next((data.splits[name] for name in ("test", "dev", "train") if name in data.splits), [])
    pairs = [found for found in map(_pair_of, islice(split, LOOKED_AT)) if found is not None]
    return [_with_other(place, found, pairs, data.labels) for place, found in enumerate(_varied(pairs, count), start=1)]


def spectrum_of_pair(model: Any, features: Tensors, masks: Tensors) -> IterationSpectrum:
    """The leading eigenvalues for one pair, as the encoders made it."""
    return IterationSpectrum.of(_output(model, features, masks).solution.detach())


def diagnosis_of_pair(model: Any, features: Tensors, masks: Tensors) -> Diagnosis:
    """Who moves whom for one pair, and the verdict."""
    return diagnose(model, _output(model, features, masks), samples=1)


def _output(model: Any, features: Tensors, masks: Tensors) -> Any:
    """The model's own output for the pair, in eval mode as the run was loaded."""
    with torch.no_grad():
        return model(dict(features), dict(masks))


def _pair_of(example: Example) -> Found | None:
    pictures = [each for each in example.content.values() if isinstance(each, Picture)]
    texts = [each for each in example.content.values() if isinstance(each, str)]
    if len(pictures) != 1 or len(texts) != 1:
        return None
    target = example.target
    known = target is not None and target.ndim == 0 and not target.is_floating_point()
    return pictures[0], texts[0], int(target) if known and target is not None else None


def _varied(pairs: Sequence[Found], count: int) -> Iterator[Found]:
    """The first pairs with a picture, a text and, as far as it goes, a label that the one before did not have."""
    seen: set[str] = set()
    before: int | None = None
    for picture, text, label in pairs:
        if len(seen) >= 2 * count:
            return
        if str(picture) in seen or text in seen or (label is not None and label == before):
            continue
        seen |= {str(picture), text}
        before = label
        yield picture, text, label


def _with_other(place: int, found: Found, pairs: Sequence[Found], labels: Sequence[str]) -> ExamplePair:
    picture, text, label = found
    others = [each for each in pairs if each[1] != text and (label is None or each[2] != label)]
    same = [each for each in others if str(each[0]) == str(picture)]
    other = (same or others or [found])[0][1]
    said = f" ({labels[label]})" if label is not None and label < len(labels) else ""
    return ExamplePair(name=f"{place}. {text}{said}", picture=picture, caption=text, other=other)
