"""What the built-in encoders say of patches and of words: numpy and Pillow only, and nothing of meq.

A folder of `meq export` holds a copy of this file, which is all that it needs to read pictures and texts.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from jaxtyping import Float

    Patch = Float[np.ndarray, "T 16 16 3"]
    Map = Float[np.ndarray, "T H W"]

SIDE = 16
"""Pixels of a patch's side when it is described, whatever the picture's size."""
BITMAP = 8
HUES, SHADES, EDGES, OUTLINE = 8, 4, 8, 12
FOLDS = range(2, 7)
DESCRIPTORS = 12 + HUES + SHADES + EDGES + OUTLINE + BITMAP**2 + len(FOLDS) + 2
FAINT = 40.0
"""A difference of colour, of 255, below which a patch counts as having no figure in it."""
NOTHING = 1e-3
"""Added to a histogram's total, per pixel: a plain patch has no hue and no direction, not those of its noise."""
PATCH_GAIN, WORD_GAIN = 3.0, 8.0
"""Bring a token's mean square near one: fainter features drown in the states of a model that has yet to learn."""


def patch_tokens(image: Image.Image, grid: int) -> Float[np.ndarray, "T W"]:
    """One token per cell of a grid over a picture in RGB: its descriptors and its place."""
    scaling = Image.Resampling.BOX if min(image.size) > grid * SIDE else None
    patches = cut(image, grid, SIDE, scaling)
    return PATCH_GAIN * np.concatenate([describe(patches), place_code(grid)], axis=1)


def describe(patches: Patch) -> Float[np.ndarray, "T W"]:
    """What is said of each patch. The factors give colour, outline and place about the same say."""
    figure = _figure(patches)
    weight = figure[..., None]
    of_figure = (patches * weight).sum((1, 2)) / (weight.sum((1, 2)) + 1e-6)
    of_ground = (patches * (1 - weight)).sum((1, 2)) / ((1 - weight).sum((1, 2)) + 1e-6)
    parts = [
        patches.mean((1, 2)) / 127.5 - 1,
        patches.std((1, 2)) / 64,
        of_figure / 127.5 - 1,
        (of_figure - of_ground) / 127.5,
        2 * _hues(patches, figure),
        _shades(patches),
        _orientations(patches.mean(3) / 255, EDGES, signed=False),
        2 * _orientations(figure, OUTLINE, signed=True),
        0.4 * (_bitmap(figure).reshape(len(patches), -1) - 0.25),
        2 * _symmetry(figure),
    ]
    return np.concatenate(parts, axis=1)


def cut(
    image: Image.Image, grid: int, side: int, scaling: Image.Resampling | None
) -> Float[np.ndarray, "T side side 3"]:
    """The picture scaled to whole patches: fractions of a pixel at their borders are shared out, nothing is cropped."""
    scaled = image.resize((grid * side, grid * side), scaling)
    pixels = np.asarray(scaled, dtype=np.float32).reshape(grid, side, grid, side, 3)
    return pixels.swapaxes(1, 2).reshape(grid * grid, side, side, 3)


def _figure(patches: Patch) -> Map:
    """How far each pixel stands out from the patch's border, from 0 to 1."""
    border = np.concatenate([patches[:, 0], patches[:, -1], patches[:, :, 0], patches[:, :, -1]], axis=1)
    away = np.abs(patches - smallest(border, 1 / 2)[:, None, None]).max(3)
    most = np.maximum(smallest(away.reshape(len(away), -1), 19 / 20), FAINT)[:, None, None]
    return ((away / most - 0.3) / 0.4).clip(0, 1)


def smallest(values: Float[np.ndarray, "T N ..."], share: float) -> Float[np.ndarray, "T ..."]:
    """The value that this share of them lies below, per patch."""
    place = int(values.shape[1] * share)
    return np.partition(values, place, axis=1)[:, place]


def _hues(patches: Patch, figure: Map) -> Float[np.ndarray, "T 8"]:
    """Shares of hues in the figure, each pixel counted by how vivid it is and shared between the two nearest hues."""
    most, least = patches.max(3), patches.min(3)
    vivid = most - least
    red, green, blue = np.moveaxis(patches, 3, 0)
    safe = np.maximum(vivid, 1e-6)
    hue = np.select(
        [most == red, most == green], [(green - blue) / safe % 6, (blue - red) / safe + 2], (red - green) / safe + 4
    )
    return _shared_out(hue / 6 * HUES, vivid / 255 * figure, HUES)


def _shades(patches: Patch) -> Float[np.ndarray, "T 4"]:
    shade = (patches.mean(3) * SHADES // 256).astype(int)
    return np.stack([(shade == level).mean((1, 2)) for level in range(SHADES)], axis=1)


def _orientations(values: Map, bins: int, *, signed: bool) -> Float[np.ndarray, "T B"]:
    """Shares of the directions in which the values rise, by how steeply; unsigned: up and down are one direction."""
    down = (values[:, 2:, 1:-1] - values[:, :-2, 1:-1]) / 2
    right = (values[:, 1:-1, 2:] - values[:, 1:-1, :-2]) / 2
    turns = np.arctan2(down, right) / (2 * np.pi)
    return _shared_out(turns * (1 if signed else 2) % 1 * bins, np.hypot(down, right), bins)


def _shared_out(places: Map, weights: Map, bins: int) -> Float[np.ndarray, "T B"]:
    """A circular histogram in which every weight is split between the two nearest bins; shares of the total."""
    low = np.floor(places)
    share, bin_below = places - low, low.astype(int) % bins
    first = bins * np.arange(len(places))[:, None, None]
    at = np.concatenate([(first + bin_below).ravel(), (first + (bin_below + 1) % bins).ravel()])
    split = np.concatenate([(weights * (1 - share)).ravel(), (weights * share).ravel()])
    hist = np.bincount(at, weights=split, minlength=bins * len(places)).reshape(len(places), bins)
    return hist / (hist.sum(1, keepdims=True) + NOTHING * SIDE**2)


def _bitmap(figure: Map) -> Float[np.ndarray, "T 8 8"]:
    """The figure moved to the middle of its patch and made coarse: its outline, wherever it stood."""
    along = np.arange(SIDE)
    mass = figure.sum((1, 2)) + 1e-6
    down = np.rint((figure.sum(2) * along).sum(1) / mass - (SIDE - 1) / 2).astype(int)
    right = np.rint((figure.sum(1) * along).sum(1) / mass - (SIDE - 1) / 2).astype(int)
    row, column = along[None, :, None] + down[:, None, None], along[None, None, :] + right[:, None, None]
    inside = (row >= 0) & (row < SIDE) & (column >= 0) & (column < SIDE)
    patch = np.arange(len(figure))[:, None, None]
    moved = np.where(inside, figure[patch, row.clip(0, SIDE - 1), column.clip(0, SIDE - 1)], 0)
    step = SIDE // BITMAP
    return moved.reshape(-1, BITMAP, step, BITMAP, step).mean((2, 4))


def _symmetry(figure: Map) -> Float[np.ndarray, "T S"]:
    """How far the outline repeats itself in 2 .. 6 parts of a turn, how round it is, and whether there is any.

    |sum w e^(i n t)| / sum w over the pixels at angle t from the figure's middle, with w = figure x distance^4, since
    it is the rim that tells shapes apart. A triangle has 3, a square 4, a star 5, and a disc none.
    """
    along, mass = np.arange(SIDE, dtype=figure.dtype), figure.sum((1, 2)) + 1e-6
    down = along[None, :, None] - ((figure.sum(2) * along).sum(1) / mass)[:, None, None]
    right = along[None, None, :] - ((figure.sum(1) * along).sum(1) / mass)[:, None, None]
    squared = down**2 + right**2
    turn = (right + 1j * down) / np.sqrt(np.maximum(squared, 1e-6))
    weights = (figure * squared**2).reshape(len(figure), 1, -1)
    turned = np.cumprod(np.broadcast_to(turn.reshape(len(figure), -1, 1), (len(figure), SIDE**2, max(FOLDS))), axis=2)
    repeats = np.abs(weights @ turned[:, :, FOLDS[0] - 1 :])[:, 0] / (weights.sum(2) + 1e-6)
    there = (mass / (mass + SIDE))[:, None]
    round_ = (1 - repeats.sum(1, keepdims=True)).clip(0, 1)
    return there * np.concatenate([repeats, round_, np.ones_like(round_)], axis=1)


def place_code(grid: int) -> Float[np.ndarray, "T P"]:
    """The row and the column, one-hot."""
    row, column = np.divmod(np.arange(grid * grid), grid)
    return np.concatenate([np.eye(grid)[row], np.eye(grid)[column]], axis=1)


# -- words -------------------------------------------------------------------------------------------------------------

SCENE_WORDS = (
    *("a", "is", "that", "there", "thing", "red", "green", "blue", "yellow", "circle", "square", "triangle", "star"),
    *("left", "right", "of", "above", "below"),
)
COMMON_WORDS = ("the", "an", "and", "are", "in", "on", "at", "to", "with", "no", "not", ".", ",", "?", "!")
VOCABULARY = (*SCENE_WORDS, *COMMON_WORDS)
"""Words with a feature of their own; all others share the buckets."""
BUCKETS = 128
WAVES = 8
WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")


def word_tokens(text: str, most: int) -> tuple[Float[np.ndarray, "N W"], list[tuple[int, int]], bool]:
    """One token per word or mark, where each lies in the text, and whether there were more than `most`."""
    found = list(WORD.finditer(text))
    kept = found[:most]
    codes = [word_code(match.group().lower()) for match in kept]
    words = np.stack(codes) if codes else np.zeros((0, len(VOCABULARY) + BUCKETS))
    tokens = WORD_GAIN * np.concatenate([words, _position_code(len(kept))], axis=1)
    return tokens, [match.span() for match in kept], len(found) > most


@lru_cache(maxsize=100_000)
def word_code(word: str) -> Float[np.ndarray, " W"]:
    """One-hot for a word of the vocabulary; for another, signed hashes of it and its letter triples, of length one."""
    code = np.zeros(len(VOCABULARY) + BUCKETS)
    if word in VOCABULARY:
        code[VOCABULARY.index(word)] = 1
        return code
    code[len(VOCABULARY) :] = hashed(word, BUCKETS)
    return code


def hashed(word: str, buckets: int) -> Float[np.ndarray, " W"]:
    """Signed hashes of a word and its letter triples, of length one."""
    code, padded = np.zeros(buckets), f"<{word}>"
    for piece in [padded, *(padded[start : start + 3] for start in range(len(padded) - 2))]:
        number = int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=8).digest(), "little")
        code[number % buckets] += 1 if number >> 63 else -1
    length = np.sqrt((code**2).sum())
    return code / length if length else code


def _position_code(count: int) -> Float[np.ndarray, "N P"]:
    """Sines and cosines of the position, from a turn in four words to one in a few hundred; fainter than the word."""
    angles = np.arange(count)[:, None] * 2 * np.pi / (4 * 2.0 ** np.arange(WAVES))
    return 0.2 * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
