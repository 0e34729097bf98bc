"""Pixels of a picture's cells as they are: what a model learns of them, it learns in its own first layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from meq.data.content import Content, Picture
from meq.encoders.builtin import SIDE, cut, definition_hash, grid_boxes, place_code
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.options import checked_options, switch

GREY, SPREAD = 127.5, 75.0
"""What is taken from a channel's value of 0 to 255, and what the rest is divided by: a mean square near one."""
PLACE_GAIN = 3.0


@checked_options
class Pixels(Encoder):
    """One token per cell of a grid over the picture: its own pixels, scaled to `side` x `side`, and the place.

    A linear layer on top of it is a patch embedding.
    """

    registered = "pixels"
    kind = "image"
    revision = "v1"

    def __init__(self, *, grid: int = 6, side: int = SIDE, place: bool = True) -> None:
        if not 1 <= grid <= 64:
            raise ValueError(f"Pixels: grid must lie between 1 and 64, got {grid}")
        if not 1 <= side <= 64:
            raise ValueError(f"Pixels: side must lie between 1 and 64, got {side}")
        self.grid, self.side, self.place = grid, side, switch("Pixels: place", place)
        self.name = f"pixels-{grid}x{grid}-{side}{'' if place else '-no-place'}-v1"
        self.weight_hash = definition_hash(self.name, GREY, SPREAD, PLACE_GAIN)
        self.width = 3 * side**2 + (2 * grid if place else 0)
        self.window = (grid * side, grid * side)
        """Width and height of what it looks at."""

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._encode(content) for content in contents]

    def _encode(self, content: Content) -> Tokens:
        image, whole = content_of(Picture, content, self.name, "pictures").open_scaled(self.grid * self.side)
        cells = cut(image.convert("RGB"), self.grid, self.side, Image.Resampling.BOX).reshape(self.grid**2, -1)
        parts = [(cells - GREY) / SPREAD, *([PLACE_GAIN * place_code(self.grid)] if self.place else [])]
        features = np.concatenate(parts, axis=1).astype(np.float32)
        return Tokens(features=torch.from_numpy(features), boxes=grid_boxes(self.grid, *whole))
