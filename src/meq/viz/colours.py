"""The colours of all figures: told apart by colour-blind eyes, quiet on paper (Okabe and Ito's palette)."""

from __future__ import annotations

from collections.abc import Sequence

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#22252A"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, BLACK)
INK, FAINT, RULE, PAPER = "#22252A", "#6B7079", "#D9DBDF", "#FFFFFF"
LOST = "#8A8F98"
"""Of an answer that is not finite, and of labels beyond the palette."""
MEANINGS = {
    **dict.fromkeys(("entailment", "yes", "true", "present"), GREEN),
    **dict.fromkeys(("contradiction", "no", "false", "absent"), VERMILION),
    **dict.fromkeys(("neutral", "maybe", "unknown", "undetermined"), ORANGE),
}
"""Colours that readers expect, for labels with these names."""
HEAT = ((255, 255, 255), (254, 217, 142), (254, 153, 41), (204, 76, 2))
"""Of heat maps and shaded words: white, through yellow and orange, to brown; also in order when printed in grey."""


def label_colours(labels: Sequence[str]) -> dict[str, str]:
    """A colour per label: the expected one where all names have one, else by place."""
    if labels and all(label.lower() in MEANINGS for label in labels):
        return {label: MEANINGS[label.lower()] for label in labels}
    return {label: PALETTE[place] if place < len(PALETTE) else LOST for place, label in enumerate(labels)}


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
