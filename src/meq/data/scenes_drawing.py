"""Scenes as pictures: textured things on a textured ground, some camouflaged, some cells beneath an opaque cover.

All of it is integer arithmetic on raw PCG64 output, so that a scene is the same picture, bit for bit, on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int
from PIL import Image

from meq.data.scenes_worlds import CELLS, COVERED, GRID, SHAPES, THINGS

PAINT = np.array([(205, 42, 40), (38, 142, 52), (42, 76, 200), (232, 196, 34)])
"""By colour."""
GROUNDS = np.array([(198, 188, 164), (150, 156, 160), (164, 172, 142), (186, 158, 142), (158, 150, 170)])
STAR = np.array([(0, -1000), (-951, -309), (-588, 809), (588, 809), (951, -309)])
"""Outward normals of a five-pointed star's edges, in thousandths."""
BAR, FRAME = (38, 38, 44), (24, 24, 28)


class Dice:
    """Whole numbers that depend on the seeds alone: not on the platform, nor on the release of NumPy."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.bits = np.random.PCG64(np.random.SeedSequence(list(seeds)))

    def draw(self, count: int, *shape: int) -> np.ndarray:
        """Numbers from 0 to count - 1."""
        raw = self.bits.random_raw(int(np.prod(shape, dtype=int)))
        return (np.asarray(raw, dtype=np.uint64) % np.uint64(count)).astype(np.int64).reshape(shape)

    def one(self, count: int) -> int:
        return int(self.bits.random_raw()) % count

    def bytes(self, *shape: int) -> np.ndarray:
        """Numbers from 0 to 255, eight from each draw."""
        wanted = int(np.prod(shape, dtype=int))
        raw = np.asarray(self.bits.random_raw((wanted + 7) // 8), dtype="<u8")
        return raw.view(np.uint8)[:wanted].astype(np.int64).reshape(shape)


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture before it is drawn."""

    cells: tuple[int, ...]
    camouflaged: tuple[bool, ...]
    """Per cell; says nothing where there is no thing."""
    size: int
    """Pixels of a side."""
    seeds: tuple[int, ...]
    """What textures, sizes and exact positions are drawn from."""

    @property
    def pixels(self) -> int:
        """Of a cell's side."""
        return self.size // GRID


@lru_cache(maxsize=64)  # examples that share a picture follow each other
def _painted(scene: Scene) -> tuple[Image.Image, Int[np.ndarray, "H W"]]:
    """The picture, and for every pixel the cell of the thing or cover it belongs to, or -1."""
    dice = Dice(scene.seeds)
    base = GROUNDS[dice.one(len(GROUNDS))]
    grain = _grain(dice, scene.size)
    picture = base + grain[:, :, None]
    owner = np.full((scene.size, scene.size), -1)
    for cell in range(CELLS):
        there = _square(scene, cell)
        if scene.cells[cell] >= COVERED:
            picture[there] = _cover(scene.cells[cell] - COVERED, scene.pixels)
            owner[there] = cell
        elif scene.cells[cell] < THINGS:
            colour, shape = divmod(scene.cells[cell], len(SHAPES))
            mask = _outline(SHAPES[shape], scene.pixels, dice)
            paint = _paint(colour, scene.pixels, dice)
            if scene.camouflaged[cell]:  # the ground's own grain, and half of its colour
                paint = (PAINT[colour] + base) // 2 + grain[there][:, :, None]
            picture[there] = np.where(mask[:, :, None], paint, picture[there])
            owner[there][mask] = cell
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8)), owner


def draw_scene(scene: Scene) -> Image.Image:
    """The picture of a scene, the same one every time."""
    return _painted(scene)[0].copy()


def mask_of(scene: Scene, cells: Sequence[int]) -> Bool[np.ndarray, "H W"]:
    """Exactly the pixels of the things or covers in these cells."""
    return np.isin(_painted(scene)[1], list(cells))


def _square(scene: Scene, cell: int) -> tuple[slice, slice]:
    row, column = divmod(cell, GRID)
    side = scene.pixels
    return slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side)


def _grain(dice: Dice, size: int) -> Int[np.ndarray, "H W"]:
    """Blotches of a few pixels, and fine noise on top."""
    blotch = max(2, size // 24)
    rough = dice.bytes(size // blotch + 1, size // blotch + 1) // 8 - 16
    rough = rough.repeat(blotch, 0).repeat(blotch, 1)[:size, :size]
    return rough + dice.bytes(size, size) // 16 - 8


def _outline(shape: str, side: int, dice: Dice) -> Bool[np.ndarray, "H W"]:
    """The shape within its cell: its size and position vary, and it never leaves the cell."""
    radius = side * (8 + dice.one(3)) // 32
    room = max(0, side // 2 - 1 - radius * 13 // 10)
    middle = side // 2 + dice.draw(2 * room + 1, 2) - room
    y, x = np.arange(side)[:, None] - middle[0], np.arange(side)[None, :] - middle[1]
    if shape == "circle":
        return x * x + y * y <= radius * radius
    if shape == "square":
        return (np.abs(x) * 100 <= radius * 88) & (np.abs(y) * 100 <= radius * 88)
    if shape == "triangle":
        return (100 * np.abs(x) <= 58 * y + 70 * radius) & (10 * y <= 8 * radius)
    inside = [(along_x * x + along_y * y) <= 402 * radius for along_x, along_y in STAR.tolist()]  # 0.309 x 1.3
    return np.sum(inside, axis=0) >= 4  # every tip of a star lies beyond one edge, what is outside beyond two


def _paint(colour: int, side: int, dice: Dice) -> Int[np.ndarray, "H W 3"]:
    """The colour, a little off, with stripes, checks, dots or speckles in lighter and darker shades of it."""
    kind = dice.one(len(PATTERNS) + 1)
    light = _pattern(kind, side) if kind < len(PATTERNS) else dice.bytes(side, side) // 128
    return (PAINT[colour] + dice.draw(25, 3) - 12 - 22) + 44 * light[:, :, None]


PATTERNS: tuple[Callable[[np.ndarray, np.ndarray, int], np.ndarray], ...] = (
    lambda x, y, block: x // block + 0 * y,
    lambda x, y, block: y // block + 0 * x,
    lambda x, y, block: (x + y) // block,
    lambda x, y, block: (x - y) // block,
    lambda x, y, block: x // block + y // block,
    lambda x, y, block: (x // block % 2) * (y // block % 2),
)
"""Light where odd: four ways of stripes, checks, dots."""


@lru_cache(maxsize=64)
def _pattern(kind: int, side: int) -> Int[np.ndarray, "H W"]:
    return PATTERNS[kind](np.arange(side)[None, :], np.arange(side)[:, None], 2 + side // 24) % 2


@lru_cache(maxsize=32)
def _cover(colour: int, side: int) -> Int[np.ndarray, "H W 3"]:
    """Its colour and near-black in broad bars, and a frame: nothing else in a scene looks like it."""
    y, x = np.arange(side)[:, None], np.arange(side)[None, :]
    barred = (x + y) % max(6, side // 4) < max(2, side // 10)
    frame = (np.minimum(x, y) < 1) | (np.maximum(x, y) >= side - 1)
    return np.where(frame[:, :, None], FRAME, np.where(barred[:, :, None], BAR, PAINT[colour]))
