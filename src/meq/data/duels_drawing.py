"""Cards on a table as pictures: a card's own sign at the top, below it the signs that it asks, or a disc of its colour.

Signs are outlines in whole numbers, filled by integer arithmetic, so that a picture is the same, bit for bit, on every
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int
from PIL import Image

from meq.data.duels_worlds import SIGNS
from meq.data.scenes_drawing import PAINT, Dice

TABLE, CARD, INK = np.array((118, 104, 92)), np.array((226, 222, 212)), np.array((28, 28, 34))
FINE = 4
"""Points per pixel and axis at which a sign is asked whether it is there."""
LOUD = 128
"""How far noise of 1 moves a channel of a pixel at most, either way."""
LEAST = 32
"""Pixels of a card's side, below which signs could not be told apart."""

Points = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Disc:
    """Everything up to the outer radius from the middle; with an inner one, a ring."""

    x: int
    y: int
    outer: int
    inner: int = 0

    def holds(self, x: np.ndarray, y: np.ndarray, unit: int) -> Bool[np.ndarray, "S S"]:
        away = (x - self.x * unit) ** 2 + (y - self.y * unit) ** 2
        return (away <= (self.outer * unit) ** 2) & (away >= (self.inner * unit) ** 2)


@dataclass(frozen=True, slots=True)
class Area:
    """The inside of a polygon, by the even-odd rule: edges that cross leave holes."""

    points: Points

    def holds(self, x: np.ndarray, y: np.ndarray, unit: int) -> Bool[np.ndarray, "S S"]:
        inside = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)
        for (x0, y0), (x1, y1) in zip(self.points, (*self.points[1:], self.points[0]), strict=True):
            if y0 == y1:
                continue
            (x0, y0), (x1, y1) = ((x0, y0), (x1, y1)) if y0 < y1 else ((x1, y1), (x0, y0))
            beside = (x - x0 * unit) * (y1 - y0) < (y - y0 * unit) * (x1 - x0)  # left of the edge
            inside ^= beside & (y >= y0 * unit) & (y < y1 * unit)
        return inside


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through points, square at its corners."""

    points: Points
    half: int = 2
    """Half of its width."""

    def holds(self, x: np.ndarray, y: np.ndarray, unit: int) -> Bool[np.ndarray, "S S"]:
        inside = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)
        for (x0, y0), (x1, y1) in zip(self.points[:-1], self.points[1:], strict=True):
            right, down = x1 - x0, y1 - y0
            squared = right * right + down * down
            along = (x - x0 * unit) * right + (y - y0 * unit) * down
            across = (x - x0 * unit) * down - (y - y0 * unit) * right
            inside |= (along >= 0) & (along <= squared * unit) & (across**2 <= (self.half * unit) ** 2 * squared)
        for x0, y0 in self.points[1:-1]:
            inside |= (abs(x - x0 * unit) <= self.half * unit) & (abs(y - y0 * unit) <= self.half * unit)
        return inside


Shape = Disc | Area | Stroke
BOX = ((-10, -10), (10, -10), (10, 10), (-10, 10))
OUTLINES: dict[str, tuple[Shape, ...]] = {
    "star": (
        Area(
            ((0, -12), (3, -4), (12, -4), (5, 2), (7, 11), (0, 6), (-7, 11), (-5, 2), (-12, -4), (-3, -4)),
        ),
    ),
    "moon": (
        Area(
            (
                *((3, -12), (-3, -11), (-8, -7), (-10, 0), (-8, 7), (-3, 11), (3, 12)),
                *((-1, 8), (-3, 4), (-4, 0), (-3, -4), (-1, -8)),
            )
        ),
    ),
    "cross": (Stroke(((0, -12), (0, 12)), half=3), Stroke(((-12, 0), (12, 0)), half=3)),
    "heart": (Disc(-6, -5, 6), Disc(6, -5, 6), Area(((-12, -3), (0, -6), (12, -3), (0, 12)))),
    "ring": (Disc(0, 0, 12, 7),),
    "arrow": (Area(((12, 0), (0, -11), (0, 11))), Stroke(((-12, 0), (0, 0)), half=3)),
    "square": (Area(BOX),),
    "diamond": (Area(((0, -12), (12, 0), (0, 12), (-12, 0), (0, -12), (0, -6), (-6, 0), (0, 6), (6, 0), (0, -6))),),
    "triangle": (Area(((-12, -11), (12, -11), (0, 11))),),
    "bolt": (Area(((3, -12), (-9, 2), (-2, 2), (-4, 12), (9, -3), (1, -3), (7, -12))),),
    "hourglass": (Area(((-10, -12), (10, -12), (-10, 12), (10, 12))),),
    "ladder": (
        *(Stroke(((-8, -12), (-8, 12))), Stroke(((8, -12), (8, 12)))),
        *(Stroke(((-8, -7), (8, -7))), Stroke(((-8, 0), (8, 0))), Stroke(((-8, 7), (8, 7)))),
    ),
    "key": (Disc(-6, -6, 6, 3), Stroke(((-3, -3), (11, 11))), Stroke(((11, 4), (5, 10)))),
    "flag": (Stroke(((-9, -12), (-9, 12))), Area(((-9, -12), (12, -6), (-9, 1)))),
    "house": (
        Area(((0, -12), (12, -1), (9, -1), (9, 12), (4, 12), (4, 3), (-4, 3), (-4, 12), (-9, 12), (-9, -1), (-12, -1))),
    ),
    "fish": (Area(((-12, 0), (-6, -7), (1, -6), (8, 0), (1, 6), (-6, 7))), Area(((4, 0), (12, -8), (12, 8)))),
    "cup": (Stroke(((-9, -12), (-9, 9), (9, 9), (9, -12)), half=3),),
    "crown": (Area(((-12, -9), (-6, -1), (0, -11), (6, -1), (12, -9), (10, 10), (-10, 10))),),
    "tree": (Area(((0, -12), (7, -4), (4, -4), (11, 5), (-11, 5), (-4, -4), (-7, -4))), Stroke(((0, 5), (0, 12)))),
    "eye": (
        Area(
            (
                (-12, 0),
                (-6, -7),
                (6, -7),
                (12, 0),
                (6, 7),
                (-6, 7),
                (-12, 0),
                (-8, 0),
                (-5, 4),
                (5, 4),
                (8, 0),
                (5, -4),
                (-5, -4),
                (-8, 0),
            )
        ),
        Disc(0, 0, 3),
    ),
    "wave": (Stroke(((-12, 3), (-6, -5), (0, 5), (6, -5), (12, 3))),),
    "gate": (Stroke(((-9, 12), (-9, -9), (9, -9), (9, 12)), half=3),),
    "fork": (Stroke(((-9, -12), (-9, -2), (9, -2), (9, -12))), Stroke(((0, -12), (0, 12)))),
    "hook": (Stroke(((6, -12), (6, 9), (-8, 9), (-8, 0)), half=3),),
    "stairs": (Area(((-12, 12), (-12, 4), (-4, 4), (-4, -4), (4, -4), (4, -12), (12, -12), (12, 12))),),
    "comb": (Stroke(((-9, -12), (-9, 12)), half=3), *(Stroke(((-9, y), (11, y)), half=2) for y in (-10, 0, 10))),
    "net": (
        *(Stroke(((-12, y), (12, y))) for y in (-6, 6)),
        *(Stroke(((x, -12), (x, 12))) for x in (-6, 6)),
    ),
}
"""Of every sign, on a square from -12 to 12 with y downwards; the union of its shapes."""


@dataclass(frozen=True, slots=True)
class Cards:
    """One picture before it is drawn; cards lie in rows, from the top left to the bottom right."""

    signs: tuple[int, ...]
    """Each card's own."""
    asked: tuple[tuple[int, ...], ...]
    """The signs that each card asks; none for a terminal."""
    colours: tuple[int, ...]
    """-1 for a card that asks."""
    size: int
    """Pixels of the picture's side."""
    noise: float
    seeds: tuple[int, ...]
    """What the noise is drawn from."""

    @property
    def pixels(self) -> int:
        """Of a card's side, its strip of the table included."""
        return self.size // round(len(self.signs) ** 0.5)


@lru_cache(maxsize=64)  # examples that share a picture follow each other
def _painted(cards: Cards) -> Image.Image:
    picture = np.empty((cards.size, cards.size, 3), dtype=np.int64)
    for card in range(len(cards.signs)):
        picture[_square(cards, card)] = _card(
            cards.signs[card], cards.asked[card], cards.colours[card], side=cards.pixels
        )
    loud = round(LOUD * cards.noise)
    if loud:
        picture += Dice(cards.seeds).draw(2 * loud + 1, *picture.shape) - loud
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def draw_cards(cards: Cards) -> Image.Image:
    """The picture of the cards, the same one every time."""
    return _painted(cards).copy()


def mask_of_cards(cards: Cards, some: Sequence[int]) -> Bool[np.ndarray, "H W"]:
    """The pixels of these cards, each without its strip of the table."""
    mask = np.zeros((cards.size, cards.size), dtype=bool)
    for card in some:
        mask[_square(cards, card)] = _face(cards.pixels)
    return mask


def _square(cards: Cards, card: int) -> tuple[slice, slice]:
    side = cards.pixels
    row, column = divmod(card, cards.size // side)
    return slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side)


def _face(side: int) -> Bool[np.ndarray, "S S"]:
    along = np.arange(side)
    inner = (along >= side // 24) & (along < side - side // 24)
    return inner[:, None] & inner


@lru_cache(maxsize=4096)  # with few signs, the same cards lie on many tables
def _card(sign: int, asked: tuple[int, ...], colour: int, *, side: int) -> Int[np.ndarray, "S S 3"]:
    """A card: three places for signs of 5/12 of its side, one above and two below; a single one stands between them."""
    picture = _blank(side).copy()
    width = 5 * side // 12
    high, low = side // 16, side - side // 16 - width
    middle, left, right = (side - width) // 2, side // 16, side - side // 16 - width
    _put(picture, sign_cover(sign, width), INK, high, middle)
    if colour >= 0:
        _put(picture, disc_cover(width), PAINT[colour], low, middle)
    for other, column in zip(asked, (middle,) if len(asked) == 1 else (left, right), strict=False):
        _put(picture, sign_cover(other, width), INK, low, column)
    return picture


@lru_cache(maxsize=16)
def _blank(side: int) -> Int[np.ndarray, "S S 3"]:
    return np.where(_face(side)[:, :, None], CARD, TABLE)


def _put(picture: np.ndarray, cover: Int[np.ndarray, "S S"], paint: np.ndarray, top: int, left: int) -> None:
    there = picture[top : top + len(cover), left : left + len(cover)]
    there += (paint - there) * cover[:, :, None] // FINE**2


@lru_cache(maxsize=256)
def sign_cover(sign: int, side: int) -> Int[np.ndarray, "S S"]:
    """How much of each pixel a sign covers, in parts of FINE x FINE."""
    return _cover(OUTLINES[SIGNS[sign]], side)


@lru_cache(maxsize=16)
def disc_cover(side: int) -> Int[np.ndarray, "S S"]:
    """The same for the disc of a terminal."""
    return _cover((Disc(0, 0, 11),), side)


def _cover(shapes: tuple[Shape, ...], side: int) -> Int[np.ndarray, "S S"]:
    unit = side * FINE  # all is multiplied by it, so that the points between pixels are whole numbers too
    along = 13 * (2 * np.arange(unit) + 1 - unit)
    inside = np.any([shape.holds(along[None, :], along[:, None], unit) for shape in shapes], axis=0)
    return inside.reshape(side, FINE, side, FINE).sum((1, 3))
