"""Pixels of a picture's cells as they are: what a model learns of them, it learns in its own first layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image

from meq.data.content import Content, Picture
from meq.encoders.builtin import SIDE, cut, definition_hash, grid_boxes, place_code
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.options import checked_options, switch

SPREAD, MEAN_SPREAD = 35.0, 64.0
"""What contrasts, and the mean colour of a cell, are divided by: a mean square near one."""
GREY = 127.5
PLACE_GAIN = 1.0
COLOUR_AXES = np.array([(1, 1, 1), (1, 0, -1), (1, -2, 1)]) / np.sqrt([[3], [2], [6]])
"""Brightness, red against blue, green against both: an orthonormal basis."""


@checked_options
class Pixels(Encoder):
    """One token per cell of a grid over the picture: its own pixels, scaled to `side` x `side`, and the place.

    A linear layer on top of it is a patch embedding. Each pixel comes as its difference from the mean of the 3 x 3
    around it, as brightness and two differences of colour, so that a plain ground is zero and neighbours vary less
    together; the mean colour of the cell stands beside them.
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
        self.weight_hash = definition_hash(self.name, GREY, SPREAD, MEAN_SPREAD, PLACE_GAIN)
        self.width = 3 * side**2 + 3 + (2 * grid if place else 0)
        self.window = (grid * side, grid * side)
        """Width and height of what it looks at."""

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._encode(content) for content in contents]

    def _encode(self, content: Content) -> Tokens:
        image, whole = content_of(Picture, content, self.name, "pictures").open_scaled(self.grid * self.side)
        cells = cut(image.convert("RGB"), self.grid, self.side, Image.Resampling.BOX)
        contrast = (contrasts(cells) @ COLOUR_AXES.T).reshape(len(cells), -1) / SPREAD
        mean = (cells.mean((1, 2)) - GREY) @ COLOUR_AXES.T / MEAN_SPREAD
        parts = [contrast, mean, *([PLACE_GAIN * place_code(self.grid)] if self.place else [])]
        features = np.concatenate(parts, axis=1).astype(np.float32)
        return Tokens(features=torch.from_numpy(features), boxes=grid_boxes(self.grid, *whole))


def contrasts(cells: Float[np.ndarray, "T S S 3"]) -> Float[np.ndarray, "T S S 3"]:
    """Each pixel less the mean of the 3 x 3 around it; beyond the border of a cell, the border goes on."""
    side = cells.shape[1]
    wide = np.pad(cells, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    around = sum(wide[:, row : row + side, column : column + side] for row in range(3) for column in range(3))
    return cells - around / 9
