"""A heat map over a picture, with Pillow alone: fast enough for a page that is moved along the iteration."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Float
from PIL import Image

from meq.experiments.runs.explanation import ModalityView
from meq.viz.colours import heat_colour

SMALLEST, COVER, FADED = 24, 0.6, 0.6
"""Pixels of a side at least; how much the hottest place covers the picture; how much colour the picture keeps there."""
LEVELS = 256


def heat_picture(view: ModalityView, row: int, *, side: int = 320) -> Image.Image:
    """The view's picture with the heat of one measured step; `side` pixels on its longer side.

    The colour scale ends at the view's largest share at any step, so that pictures of several steps can be compared.
    """
    picture = fitted(view, side)
    heat = view.heat(row, width=picture.width, height=picture.height).numpy()
    return blend(picture, heat / view.peak if view.peak > 0 else heat)


def fitted(view: ModalityView, side: int) -> Image.Image:
    """The whole picture with `side` pixels on its longer side; small pictures keep their pixels sharp."""
    if view.picture is None:
        raise ValueError(f"{view.name!r} is of kind {view.kind!r}: there is no picture to draw on")
    scale = side / max(view.picture.size)
    size = tuple(max(SMALLEST, round(edge * scale)) for edge in view.picture.size)
    method = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS
    return view.picture.resize((size[0], size[1]), method)


def blend(picture: Image.Image, heat: Float[np.ndarray, "H W"]) -> Image.Image:
    """Heat between 0 and 1 over the picture: without heat it is pale, with heat it shows through the colour."""
    if heat.shape != (picture.height, picture.width):
        raise ValueError(f"a heat map of {heat.shape} does not fit a picture of {(picture.height, picture.width)}")
    pixels = np.asarray(picture.convert("RGB"), dtype=np.float32)
    grey = pixels.mean(2, keepdims=True)
    strength = heat.clip(0, 1).astype(np.float32)[..., None]
    base = grey + (pixels - grey) * (1 - (1 - FADED) * strength)
    cover = COVER * np.sqrt(strength)
    warm = _scale()[(strength[..., 0] * (LEVELS - 1)).astype(int)]
    return Image.fromarray((base * (1 - cover) + warm * cover).clip(0, 255).astype(np.uint8))


@lru_cache(maxsize=1)
def _scale() -> Float[np.ndarray, "L 3"]:
    return np.array([heat_colour(level / (LEVELS - 1)) for level in range(LEVELS)], dtype=np.float32)
