"""The colours of all figures, told apart by colour-blind eyes (Okabe and Ito's palette), and heat over a picture.

Without matplotlib, which the web page does not load: Pillow draws a heat map fast enough for every step of a look.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from PIL import Image

from meq.runs.explanation import Explanation, ModalityView

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#22252A"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, BLACK)
INK, FAINT, RULE, PAPER = "#22252A", "#6B7079", "#D9DBDF", "#FFFFFF"
LOST = "#8A8F98"
"""The colour of answers that are not finite, and of labels beyond the palette."""
MEANINGS = {
    **dict.fromkeys(("entailment", "yes", "true", "present"), GREEN),
    **dict.fromkeys(("contradiction", "no", "false", "absent"), VERMILION),
    **dict.fromkeys(("neutral", "maybe", "unknown", "undetermined"), ORANGE),
}
"""Colours that readers expect, for labels with these names."""
MOST_CLASSES = 6
"""Classes that are shown of thousands: those that the model considers most at K."""
HEAT = ((255, 255, 255), (254, 217, 142), (254, 153, 41), (204, 76, 2))
"""Colours of heat maps and shaded words: from white to brown, and in order when printed in grey too."""
LEVELS = 256
SMALLEST, COVER, FADED = 24, 0.6, 0.6
"""Pixels of a side at least; how much the hottest place covers the picture; how much colour the picture keeps there."""


def label_colours(labels: Sequence[str]) -> dict[str, str]:
    """A colour per label: the expected one where all names have one, else by place."""
    if labels and all(label.lower() in MEANINGS for label in labels):
        return {label: MEANINGS[label.lower()] for label in labels}
    return {label: PALETTE[place] if place < len(PALETTE) else LOST for place, label in enumerate(labels)}


def class_colours(found: Explanation) -> dict[int, str]:
    """The classes that there is room for, by place, and their colours; of many the most probable ones at K.

    None for a model that answers with a number.
    """
    if found.probabilities is None:
        return {}
    shown = list(range(len(found.labels)))
    if len(shown) > MOST_CLASSES:
        shown = found.probabilities[found.row(found.read)].nan_to_num(0).topk(MOST_CLASSES).indices.tolist()
    known = found.labels if len(found.labels) <= len(PALETTE) else [found.labels[place] for place in shown]
    return {place: label_colours(known)[found.labels[place]] for place in shown}


def heat_colour(strength: float) -> tuple[int, int, int]:
    """The colour of a heat between 0 and 1."""
    position = min(max(strength, 0.0), 1.0) * (len(HEAT) - 1)
    low = min(int(position), len(HEAT) - 2)
    red, green, blue = (round(a + (b - a) * (position - low)) for a, b in zip(HEAT[low], HEAT[low + 1], strict=True))
    return red, green, blue


def shade(strength: float) -> str:
    """The colour behind a word of that strength, between 0 and 1, as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*heat_colour(strength))


def ink_on(background: str) -> str:
    """Black or white, whichever can be read on it."""
    red, green, blue = (int(background[place : place + 2], 16) for place in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"


def heat_picture(view: ModalityView, row: int | None, *, side: int = 320) -> Image.Image:
    """The view's picture with the heat of one measured step, or without (None); `side` pixels on its longer side.

    The colour scale ends at the view's largest share at any step, so that pictures of several steps can be compared.
    """
    if view.picture is None:
        raise ValueError(f"{view.name!r} is of kind {view.kind!r}: there is no picture to draw on")
    picture = fitted(view.picture, side)
    if row is None:
        return picture
    heat = view.heat(row, width=picture.width, height=picture.height).numpy()
    return blend(picture, heat / view.peak if view.peak > 0 else heat)


def fitted(picture: Image.Image, side: int) -> Image.Image:
    """The whole picture with `side` pixels on its longer side; small pictures keep their pixels sharp."""
    scale = side / max(picture.size)
    wide, tall = (max(SMALLEST, round(edge * scale)) for edge in picture.size)
    return picture.resize((wide, tall), Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS)


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
