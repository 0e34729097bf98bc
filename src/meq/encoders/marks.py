"""Marks in a picture's cells: figures on a plain ground, each found by itself and told by its outline and its colour.

For pictures that are drawn: cards, icons, diagrams. Nothing is learned and nothing is known of what the marks may be: a
mark is told by which of many random patterns its outline resembles most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from scipy import ndimage

from meq.data.content import Content, Picture
from meq.data.scenes_drawing import Dice
from meq.encoders.builtin import PHOTO_GRID, definition_hash, grid_boxes
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.encoders.descriptors import FAINT, cut, smallest
from meq.options import checked_options

SIDE = 48
"""Pixels of a cell's side when it is looked at, whatever the picture's size."""
BITMAP = 12
"""An outline is made so coarse before it is compared."""
PATTERNS, RESEMBLED = 128, 4
"""How many patterns there are, and how many of them a mark is told by: few, so that different marks share none."""
HALVES = 2
"""A cell's marks are counted above and below its middle apart."""
INK = 0.97
"""This share of a cell's pixels is no darker than its ink."""
SMALL = 4
"""Pixels of a side, below which a mark is dirt."""
MARK_GAIN, COLOUR_GAIN = 2.0, 10.0
"""Give outline and colour about the same say."""

Box = tuple[int, int, int, int]
"""First row, first column, past the last row, past the last column."""


@checked_options
class Marks(Encoder):
    """One token per cell of a grid over the picture: the marks in its upper and in its lower half, as two bags.

    A mark is a connected figure that stands out from the cell's ground and does not touch its border; figures whose
    boxes overlap are one. It is the same wherever it stands and however large it is. Several marks in one half are
    added up. Beside each bag stands how much redder, greener and bluer than grey its marks are.
    """

    registered = "marks"
    kind = "image"
    revision = "v1"

    def __init__(self, *, grid: int = PHOTO_GRID) -> None:
        if not 1 <= grid <= 64:
            raise ValueError(f"Marks: grid must lie between 1 and 64, got {grid}")
        self.grid = grid
        self.name = f"marks-{grid}x{grid}-v1"
        self.weight_hash = definition_hash(
            self.name, SIDE, BITMAP, PATTERNS, RESEMBLED, HALVES, INK, SMALL, FAINT, MARK_GAIN, COLOUR_GAIN
        )
        self.width = HALVES * (PATTERNS + 3)

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._encode(content) for content in contents]

    def _encode(self, content: Content) -> Tokens:
        image, whole = content_of(Picture, content, self.name, "pictures").open_scaled(self.grid * SIDE)
        cells = cut(image.convert("RGB"), self.grid, SIDE, Image.Resampling.BOX)
        features = np.stack([bags(cell.astype(np.uint8).tobytes()) for cell in cells]).astype(np.float32)
        return Tokens(features=torch.from_numpy(features), boxes=grid_boxes(self.grid, *whole))


@lru_cache(maxsize=4096)  # drawn pictures show the same cells again and again
def bags(values: bytes) -> Float[np.ndarray, " W"]:
    """What stands in the upper and the lower half of a cell, given by its pixels."""
    cell = np.frombuffer(values, dtype=np.uint8).reshape(SIDE, SIDE, 3).astype(np.int64)
    ground = smallest(cell.reshape(1, -1, 3), 1 / 2)[0]
    away = np.abs(cell - ground).max(2)
    ink = max(FAINT, float(smallest(away.reshape(1, -1), INK)[0]))
    figure = (255 * (away / ink).clip(0, 1)).astype(np.uint8)
    found = np.zeros((HALVES, PATTERNS + 3))
    for top, left, bottom, right in boxes_of_marks(figure > 127):
        mark, paint = figure[top:bottom, left:right], cell[top:bottom, left:right]
        colour = paint[mark > 127].mean(0)
        half = int(top + bottom >= len(cell))
        found[half, resembled(mark)] += MARK_GAIN
        found[half, PATTERNS:] += COLOUR_GAIN * (colour - colour.mean()).clip(0) / 255
    return found.reshape(-1)


def boxes_of_marks(figure: Bool[np.ndarray, "S S"]) -> list[Box]:
    """Where connected figures lie that do not touch the border; those whose boxes overlap are one."""
    labels, _ = ndimage.label(figure, structure=np.ones((3, 3)))
    slices = [found for found in ndimage.find_objects(labels) if found is not None]
    boxes = [(rows.start, columns.start, rows.stop, columns.stop) for rows, columns in slices]
    last = len(figure)
    joined: list[Box] = []
    for box in boxes:
        if min(box[:2]) > 0 and max(box[2:]) < last:
            joined = list(_joined(joined, box))
    return sorted(box for box in joined if max(box[2] - box[0], box[3] - box[1]) >= SMALL)


def _joined(boxes: Sequence[Box], new: Box) -> Iterator[Box]:
    """The boxes with a new one, which takes in all that it overlaps, and what it overlaps by then."""
    apart = list(boxes)
    while met := [box for box in apart if _overlap(box, new)]:
        rows, columns, ends, sides = zip(new, *met, strict=True)
        new = (min(rows), min(columns), max(ends), max(sides))
        apart = [box for box in apart if box not in met]
    yield from apart
    yield new


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def resembled(mark: Int[np.ndarray, "H W"]) -> list[int]:
    """The patterns that an outline resembles most: centred in a square, made coarse, compared in whole numbers."""
    high, wide = mark.shape
    side = max(mark.shape)
    square = np.zeros((side, side), dtype=np.uint8)
    top, left = (side - high) // 2, (side - wide) // 2
    square[top : top + high, left : left + wide] = mark
    coarse = np.asarray(Image.fromarray(square).resize((BITMAP, BITMAP), Image.Resampling.BOX)).astype(np.int64)
    score = _patterns() @ (coarse.size * coarse - coarse.sum()).reshape(-1)
    return np.argsort(-score, kind="stable")[:RESEMBLED].tolist()


@lru_cache(maxsize=1)
def _patterns() -> Int[np.ndarray, "P B"]:
    """Random patterns, each pixel 1 or -1."""
    return 2 * Dice((12,)).draw(2, PATTERNS, BITMAP**2) - 1
