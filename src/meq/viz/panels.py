"""The parts that grids and animations are put together from: a picture with its heat, tokens as a strip, words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from meq.analysis.maps import WORD
from meq.experiments.runs.explanation import Explanation, ModalityView
from meq.viz.colours import FAINT, HEAT, LOST, RULE, label_colours
from meq.viz.overlay import fitted, heat_picture
from meq.viz.style import MOST_OF_NAME, plain
from meq.viz.words import Paragraph, Word, draw_words

POINTS = 72.0
"""Points per inch."""
HEAT_MAP = LinearSegmentedColormap.from_list("heat", [tuple(part / 255 for part in each) for each in HEAT])
PIXELS = 260
"""Of a picture's longer side in a figure."""


def add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner of the figure, without frame or ticks."""
    wide, tall = figure.get_size_inches()
    axes = figure.add_axes((left / wide, 1 - (top + height) / tall, width / wide, height / tall))
    axes.set_axis_off()
    return axes


def add_text_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """The same, measuring points from its upper left corner."""
    axes = add_axes(figure, left, top, width, height)
    axes.set_xlim(0, width * POINTS)
    axes.set_ylim(height * POINTS, 0)
    return axes


def draw_picture(axes: Axes, view: ModalityView, row: int | None, *, border: str = RULE, pixels: int = PIXELS) -> None:
    """The whole picture, with the heat of one measured step or without (None), framed in a colour."""
    picture = fitted(view, pixels) if row is None else heat_picture(view, row, side=pixels)
    axes.set_axis_on()
    axes.imshow(np.asarray(picture), interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=border, linewidth=0.8 if row is None else 3.2)


def draw_strip(axes: Axes, view: ModalityView, row: int) -> None:
    """Tokens of a modality without picture or words, in order, as cells of their heat."""
    axes.set_axis_on()
    axes.imshow(view.shares[row][None].numpy(), cmap=HEAT_MAP, vmin=0, vmax=view.peak or 1.0, aspect="auto")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.6)


def draw_paragraphs(axes: Axes, paragraphs: Sequence[Paragraph], *, shaded: bool = True) -> None:
    """Paragraphs below each other, in axes that measure points."""
    top = 0.0
    for paragraph in paragraphs:
        draw_words(axes, paragraph, top=top, shaded=shaded)
        top += paragraph.height


def strips(explanation: Explanation) -> list[ModalityView]:
    """The modalities that are neither a picture nor a text: sounds and numbers of several tokens."""
    drawn = [*explanation.pictures, *explanation.texts]
    return [view for view in explanation.views.values() if view not in drawn and view.attribution.shape[1] > 1]


def strengths(view: ModalityView, row: int) -> list[Word]:
    """Words with their place on the view's colour scale, 0 to 1, which all steps have in common."""
    top, text = view.peak or 1.0, str(view.content)
    spans = [match.span() for match in WORD.finditer(text)]
    close = [place > 0 and spans[place - 1][1] == first for place, (first, _) in enumerate(spans)]
    pairs = zip(view.words(row), close, strict=True)
    return [Word(word=word, strength=share / top, close=tight) for (word, share), tight in pairs]


def answer_colour(explanation: Explanation, row: int) -> str:
    """Of the answer at one measured step."""
    if explanation.head == "score":
        return FAINT
    place = explanation.predictions[row]
    return LOST if place < 0 else label_colours(explanation.labels)[explanation.labels[place]]


def answer_words(explanation: Explanation, row: int) -> str:
    """The answer at one measured step, with its probability."""
    said = plain(explanation.said(row), MOST_OF_NAME)
    if explanation.head == "score" or explanation.predictions[row] < 0:
        return said
    return f"{said} {explanation.confidence(row):.2f}"
