"""Regions of pictures by a picture encoder: the whole picture first, then one token per box."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from meq.core.options import checked_options
from meq.data.content import Content, Regions
from meq.data.findings import DataError
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.picture_geometry import Size
from meq.encoders.pretrained import EncoderError

Box = tuple[float, float, float, float]
CUTTING = "squeezed, bicubic, v1"
"""Part of the hash: another way of cutting out makes other features."""
SMALLEST = 1.0
"""Pixels that a cut-out has at least in width and in height; a box as thin as a line is widened to it."""


class Summarises(Protocol):
    """A picture encoder that can also give one vector per picture."""

    name: str
    revision: str
    weight_hash: str

    @property
    def window(self) -> Size: ...

    def pooled(self, images: Sequence[Image.Image]) -> Float[Tensor, "B W"]: ...


@checked_options
class PictureRegions(Encoder):
    """One token per region, with its box; the whole picture is the first, so that a picture without boxes has one too.

    A region is squeezed into what the encoder reads, whatever its form: a centre crop would cut heads and feet off
    people, who are taller than wide.
    """

    kind = "regions"

    def __init__(self, encoder: Summarises) -> None:
        if not hasattr(encoder, "pooled"):
            raise EncoderError(f"{getattr(encoder, 'name', encoder)} gives no summary of a picture, which regions need")
        self.encoder = encoder
        self.name, self.revision = f"{encoder.name} regions", encoder.revision
        self.weight_hash = hashlib.sha256(f"{encoder.weight_hash} {CUTTING}".encode()).hexdigest()
        self.width = int(encoder.pooled([Image.new("RGB", encoder.window)]).shape[1])

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        boxes = []
        cuts: list[Image.Image] = []
        for content in contents:
            if not isinstance(content, Regions):
                raise TypeError(f"{self.name} reads regions of pictures, got {type(content).__name__}")
            image = content.picture.open().convert("RGB")
            places = [(0.0, 0.0, float(image.width), float(image.height)), *_inside(content, image.size)]
            cuts += [
                image.resize(self.encoder.window, Image.Resampling.BICUBIC, box=_widened(place, image.size))
                for place in places
            ]
            boxes.append(torch.tensor(places))
        if not contents:
            return []
        features = self.encoder.pooled(cuts).split([len(places) for places in boxes])
        return [Tokens(features=each.clone(), boxes=places) for each, places in zip(features, boxes, strict=True)]


def _inside(content: Regions, size: Size) -> list[Box]:
    """The boxes, cut off at the picture's border."""
    width, height = size
    inside = []
    for place, (left, top, right, bottom) in enumerate(content.boxes):
        if not all(map(math.isfinite, (left, top, right, bottom))) or right < left or bottom < top:
            raise DataError(
                f"{content.picture}: box {place} is {content.boxes[place]}; left, top, right, bottom are needed"
            )
        if right < 0 or bottom < 0 or left > width or top > height:
            raise DataError(
                f"{content.picture}: box {place}, {content.boxes[place]}, lies outside of {width} x {height}"
            )
        inside.append((max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))))
    return inside


def _widened(box: Box, size: Size) -> Box:
    left, right = _at_least(box[0], box[2], size[0])
    top, bottom = _at_least(box[1], box[3], size[1])
    return left, top, right, bottom


def _at_least(low: float, high: float, extent: int) -> tuple[float, float]:
    """The interval, or one of the smallest length around it that stays inside."""
    if high - low >= SMALLEST:
        return low, high
    low = min(max((low + high - SMALLEST) / 2, 0.0), extent - SMALLEST)
    return low, low + SMALLEST
