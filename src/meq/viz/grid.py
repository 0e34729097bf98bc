"""Grids in which rows are examples and columns are iterations, and the panels that they are put together from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import meq.viz.needs  # noqa: F401

# isort: split
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image

from meq.analysis.maps import WORD, paint
from meq.options import checked_options
from meq.runs.explanation import Explanation, ModalityView
from meq.studies.measures.contract import Found
from meq.studies.measures.grounding import numbers
from meq.viz.colours import FAINT, INK, LOST, RULE, blend, fitted, heat_picture, ink_on, label_colours, shade
from meq.viz.style import HEAT_MAP, MOST_OF_NAME, new_figure, plain, styled
from meq.viz.text import Paragraph, Word, set_words, text_width

POINTS = 72.0
"""Points per inch."""
PIXELS = 260
"""Pixels of a picture's longer side in a figure."""
CELL, TALLEST, BETWEEN = 1.34, 1.9, 0.12
"""Inches: a column's width, the height a picture has at most, the space between columns."""
EDGE, HEADER, HEADING, ANSWER, STRIP, FOOTER, AFTER, SCALE = 0.18, 0.52, 0.27, 0.25, 0.24, 0.78, 0.2, 2.4
MOST_LABELS = 8
SEPARATOR = "  \N{MIDDLE DOT}  "
WORDS = "words"
"""The label of the axes that all words of a figure are in."""
MAP_SIDE, MAP_BORDER = 64, 3.0
"""Pixels of a kept map's longer side, since tokens are coarser than that; the width of the border around it."""


@checked_options
def explanation_grid(
    explanations: Sequence[Explanation], *, steps: Sequence[int] | None = None, most: int = 7, title: str = ""
) -> Figure:
    """A row per example: its input, then one column per step with heat map, answer (the border) and shaded words.

    `steps` are the columns; unless given, `most` of the measured ones: the first, K and the last among them. Heat maps
    and shades of one row have one scale, so that its columns can be compared.
    """
    if not explanations:
        raise ValueError("there are no explanations to draw")
    columns = tuple(steps) if steps is not None else shown_steps(explanations[0], most)
    with styled():
        rows = [_Row.of(explanation, columns) for explanation in explanations]
        width = 2 * EDGE + (len(columns) + 1) * (CELL + BETWEEN) - BETWEEN
        footer = _legend_height(explanations[0], width - 2 * EDGE) + FOOTER + EDGE
        height = EDGE + HEADER + sum(row.height for row in rows) + footer
        figure = new_figure(width, height, constrained=False)
        _draw_header(figure, explanations[0], columns, title or "What the answer rests on, step by step")
        top = EDGE + HEADER
        for row in rows:
            row.draw(figure, top)
            top += row.height
        _draw_footer(figure, explanations, top)
    return figure


def shown_steps(explanation: Explanation, most: int) -> tuple[int, ...]:
    """At most so many of the measured steps: the first, K and the last, then the earliest, which carry most."""
    if most < 1:
        raise ValueError(f"a grid needs at least one column, got most={most}")
    steps, kept = explanation.steps, {explanation.read}
    for step in (steps[0], steps[-1], *steps):
        if len(kept) < most:
            kept.add(step)
    return tuple(sorted(kept))


def grounding_grid(
    found: Found, *, method: str, most: int = 8, pictures: Mapping[str, Image.Image] = MappingProxyType({})
) -> Figure:
    """Rows: kept examples. Columns: steps. The border is the answer at that step, the frame holds what is spoken of.

    Maps lie over the `pictures` that are there, by name, and stand alone otherwise.
    """
    examples = [each for each in found["examples"] if method in each["maps"]]
    if not examples:
        raise ValueError(f"no maps of {method!r} were kept")
    count, read = len(found["steps"]), found["steps"].index(found["read"])
    rows = list(range(count))
    if count > most:  # evenly apart, the read one among them
        rows = sorted({round(place * (count - 1) / (most - 1)) for place in range(most - 1)} | {read})
    colours = label_colours(found["labels"])
    with styled():
        figure = new_figure(1.15 * len(rows) + 0.2, 1.55 * len(examples) + 0.3)
        grid = figure.subplots(len(examples), len(rows), squeeze=False)
        for line, example in zip(grid, examples, strict=True):
            photograph = pictures.get(example["picture"])
            below = None if photograph is None else fitted(photograph, PIXELS)
            wide, tall = (MAP_SIDE, MAP_SIDE) if below is None else below.size
            heats = [_kept_map(example, method, row, width=wide, height=tall) for row in range(count)]
            peak = max(float(heat.max()) for heat in heats) or 1.0
            for axes, row in zip(line, rows, strict=True):
                probabilities = numbers(example["probabilities"][row])
                answer = found["labels"][max(range(len(probabilities)), key=probabilities.__getitem__)]
                heat = (heats[row] / peak).numpy()
                extent = (0, wide, tall, 0)
                if below is None:
                    axes.imshow(heat, cmap="Oranges", vmin=0, vmax=1, extent=extent)
                else:
                    axes.imshow(np.asarray(blend(below, heat)), extent=extent)
                _frame(axes, colours[answer], MAP_BORDER)
                if example["mask_box"] is not None:
                    (x, y), (left, top, right, bottom) = example["size"], example["mask_box"]
                    corner, across, down = (left / x * wide, top / y * tall), (right - left) / x, (bottom - top) / y
                    ink = INK if below is None else "white"
                    box = Rectangle(corner, across * wide, down * tall, fill=False, edgecolor=ink, linestyle=":")
                    axes.add_patch(box)
                axes.set_xlabel(plain(f"{answer} {max(probabilities):.2f}"), fontsize=6)
            line[0].set_title(plain(f"{example['text']} ({example['label']})"), loc="left", fontsize=7)
        for axes, row in zip(grid[-1], rows, strict=True):
            step = found["steps"][row]
            name = f"k = {step}" + (" = K" if step == found["read"] else "")
            axes.annotate(name, (0.5, -0.32), xycoords="axes fraction", ha="center", fontsize=7)
    return figure


# -- panels, which animations use as well ------------------------------------------------------------------------------


def add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner of the figure, without frame or ticks."""
    wide, tall = figure.get_size_inches()
    axes = figure.add_axes((left / wide, 1 - (top + height) / tall, width / wide, height / tall))
    axes.set_axis_off()
    return axes


def add_text_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """As `add_axes`, with coordinates in points from the upper left corner."""
    axes = add_axes(figure, left, top, width, height)
    axes.set_xlim(0, width * POINTS)
    axes.set_ylim(height * POINTS, 0)
    return axes


@dataclass(frozen=True, eq=False)
class WordPlace:
    """A part of a figure for words: coordinates in points from its upper left corner.

    All of a figure lie in one pair of axes: a pair for each would take longer to make than all that is drawn in it.
    """

    axes: Axes
    left: float
    top: float
    width: float

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        self.axes.text(self.left + x, self.top + y, words, **style)

    def add_patch(self, patch: Rectangle) -> None:
        patch.set_xy((self.left + patch.get_x(), self.top + patch.get_y()))
        self.axes.add_patch(patch)


def word_place(figure: Figure, left: float, top: float, width: float) -> WordPlace:
    """Inches from the upper left corner of the figure."""
    axes = next((each for each in figure.axes if each.get_label() == WORDS), None)
    if axes is None:
        axes = add_text_axes(figure, 0, 0, *figure.get_size_inches())
        axes.set_label(WORDS)
        axes.set_zorder(1)  # on what is drawn in axes of its own
        axes.patch.set_visible(False)
    return WordPlace(axes, left * POINTS, top * POINTS, width * POINTS)


def draw_picture(axes: Axes, view: ModalityView, row: int | None, *, border: str = RULE, pixels: int = PIXELS) -> None:
    """The whole picture, with the heat of one measured step or without (None), framed in a colour."""
    axes.set_axis_on()
    axes.imshow(np.asarray(heat_picture(view, row, side=pixels)), interpolation="nearest")
    _frame(axes, border, 0.8 if row is None else 3.2)


def draw_strip(axes: Axes, view: ModalityView, row: int) -> None:
    """Tokens of a modality without picture or words, in order, as cells of their heat."""
    axes.set_axis_on()
    axes.imshow(view.shares[row][None].numpy(), cmap=HEAT_MAP, vmin=0, vmax=view.peak or 1.0, aspect="auto")
    _frame(axes, FAINT, 0.6)


def _frame(axes: Axes, colour: str, linewidth: float) -> None:
    """A picture's axes: a border of that colour, and neither ticks nor grid."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=linewidth)


def draw_paragraphs(axes: Axes | WordPlace, paragraphs: Sequence[Paragraph], *, shaded: bool = True) -> None:
    """Paragraphs below each other, in axes that measure points, each word on the shade of its own strength."""
    top = 0.0
    for paragraph in paragraphs:
        tall = paragraph.size * 1.3
        for each in paragraph.placed:
            background = shade(each.strength) if shaded else "#ffffff"
            if shaded and each.strength > 0:
                axes.add_patch(
                    Rectangle((each.left - 0.8, top + each.top), each.width + 1.6, tall, color=background, linewidth=0)
                )
            axes.text(
                each.left, top + each.top + tall / 2, plain(each.word), fontsize=paragraph.size,
                color=ink_on(background), va="center_baseline", ha="left",
            )  # fmt: skip
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
    """The colour of the answer at one measured step."""
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


# -- the grid of explanations ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One example, laid out."""

    explanation: Explanation
    columns: tuple[int, ...]
    """Places among the measured steps."""
    picture_height: float
    words: tuple[tuple[Paragraph, ...], ...]
    """Per column, all at the same places; the input has those of the first, without shades."""

    @classmethod
    def of(cls, explanation: Explanation, steps: Sequence[int]) -> _Row:
        columns = tuple(explanation.row(step) for step in steps)
        tall = [CELL * view.picture.height / view.picture.width for view in explanation.pictures if view.picture]
        return cls(
            explanation=explanation,
            columns=columns,
            picture_height=min(max(tall, default=0.0), TALLEST),
            words=tuple(
                tuple(set_words(strengths(view, column), width=CELL * POINTS) for view in explanation.texts)
                for column in columns
            ),
        )

    @property
    def height(self) -> float:
        pictures = (self.picture_height + 0.06) * len(self.explanation.pictures)
        return HEADING + pictures + STRIP * len(strips(self.explanation)) + ANSWER + self.words_height + AFTER

    @property
    def words_height(self) -> float:
        return sum(paragraph.height for paragraph in self.words[0]) / POINTS + 0.04

    def draw(self, figure: Figure, top: float) -> None:
        place = word_place(figure, EDGE, top, figure.get_size_inches()[0] - 2 * EDGE)
        place.text(0, HEADING * POINTS / 2, _heading(self.explanation, place.width), va="center", fontsize=8.5)
        for column in range(-1, len(self.columns)):
            self._draw_column(figure, column, EDGE + (column + 1) * (CELL + BETWEEN), top + HEADING)

    def _draw_column(self, figure: Figure, place: int, left: float, top: float) -> None:
        """The input (-1), or one step."""
        row = None if place < 0 else self.columns[place]
        colour = FAINT if row is None else answer_colour(self.explanation, row)
        for view in self.explanation.pictures:
            draw_picture(add_axes(figure, left, top, CELL, self.picture_height), view, row, border=colour)
            top += self.picture_height + 0.06
        for view in strips(self.explanation):
            if row is None:
                name = plain(f"{view.name}, {view.attribution.shape[1]} tokens")
                word_place(figure, left, top, CELL).text(0, STRIP * POINTS / 2, name, fontsize=7.5, va="center")
            else:
                draw_strip(add_axes(figure, left, top + 0.03, CELL, STRIP - 0.06), view, row)
            top += STRIP
        found, said = self.explanation, ""
        if row is not None:
            said = answer_words(found, row)
        elif found.target is not None:
            said = plain(f"truth: {found.labels[found.target]}")
        size = min(8.0, 8.0 * CELL * POINTS / max(text_width(said, 8.0), 1.0))
        word_place(figure, left, top, CELL).text(
            CELL * POINTS / 2, ANSWER * POINTS / 2, said, fontsize=size, va="center", ha="center", color=_dark(colour)
        )
        words = self.words[max(place, 0)]
        draw_paragraphs(word_place(figure, left, top + ANSWER, CELL), words, shaded=row is not None)


def _dark(colour: str) -> str:
    """Text in pale colours cannot be read on white: every channel is darkened."""
    parts = [round(int(colour[place : place + 2], 16) * 0.78) for place in (1, 3, 5)]
    return "#{:02x}{:02x}{:02x}".format(*parts)


def _heading(explanation: Explanation, width: float) -> str:
    """Which example, its answer, and what one has to know of it; where there is little room, the name gives way."""
    notes = [f"answer {explanation.answer}"]
    notes += [f"{name}: end not read, too long" for name in explanation.cut]
    if explanation.stopped is not None:
        notes.append(f"not finite after step {explanation.stopped}")
    name = explanation.id
    while len(name) > 1 and text_width(SEPARATOR.join([name, *notes]), 8.5) > width:
        name = f"{name[:-2]}\N{HORIZONTAL ELLIPSIS}"
    return plain(SEPARATOR.join([name, *notes]))


def _draw_header(figure: Figure, explanation: Explanation, steps: Sequence[int], title: str) -> None:
    wide = figure.get_size_inches()[0] - 2 * EDGE
    axes = word_place(figure, EDGE, EDGE, wide)
    axes.text(0, 2, plain(title), fontsize=10.5, fontweight="bold", va="top", color=INK)
    names = {0: "k = 0, start", explanation.read: f"k = K = {explanation.read}, read"}
    for place, step in enumerate([None, *steps]):
        name = "input" if step is None else names.get(step, f"k = {step}")
        middle = (place * (CELL + BETWEEN) + CELL / 2) * POINTS
        weight = "bold" if step == explanation.read else "normal"
        axes.text(middle, HEADER * POINTS - 3, name, fontsize=8.5, ha="center", va="bottom", fontweight=weight)


def _draw_footer(figure: Figure, explanations: Sequence[Explanation], top: float) -> None:
    """What the borders and the shades mean, below each other, so that they also fit below a narrow grid."""
    wide = figure.get_size_inches()[0] - 2 * EDGE
    legend = _legend_height(explanations[0], wide)
    if legend:
        colours = label_colours(explanations[0].labels)
        patches = [Patch(color=colour, label=plain(label, MOST_OF_NAME)) for label, colour in colours.items()]
        add_axes(figure, EDGE, top, wide, legend).legend(
            handles=patches, loc="upper left", bbox_to_anchor=(0, 1), ncols=_legend_columns(wide), borderaxespad=0,
            borderpad=0, title="border: answer at that step", alignment="left", handlelength=1.2, title_fontsize=8.5,
        )  # fmt: skip
    axes = word_place(figure, EDGE, top + legend, wide)
    axes.text(0, 11, "heat and shade: share of a token in its modality", fontsize=8.5, va="center")
    scale = add_axes(figure, EDGE, top + legend + 0.27, SCALE, 0.11)
    scale.imshow([[step / 255 for step in range(256)]], cmap=HEAT_MAP, aspect="auto")
    axes.text(0, 34, "none", fontsize=8, va="center")
    axes.text(SCALE * POINTS, 34, "the row's largest", fontsize=8, va="center", ha="right")
    axes.text(0, FOOTER * POINTS - 2, _method_note(explanations), fontsize=8, color=FAINT, va="bottom")


def _legend_height(explanation: Explanation, wide: float) -> float:
    """Inches; 0 for a model that answers with a number, and for more labels than colours can tell apart."""
    if explanation.head == "score" or len(explanation.labels) > MOST_LABELS:
        return 0.0
    return 0.21 * (1 + math.ceil(len(explanation.labels) / _legend_columns(wide)))


def _legend_columns(wide: float) -> int:
    return max(1, int(wide / 1.35))


def _method_note(explanations: Sequence[Explanation]) -> str:
    methods = ", ".join(dict.fromkeys(each.method for each in explanations))
    first = explanations[0]
    whose = "the answer at K"
    if any(each.explained != each.predictions[each.row(each.read)] for each in explanations):
        whose = repr(plain(first.explained_label, MOST_OF_NAME))
    return f"Attribution: {methods}, of the score of {whose}."


# -- the grid of kept maps ---------------------------------------------------------------------------------------------


def _kept_map(example: dict[str, Any], method: str, row: int, *, width: int, height: int) -> torch.Tensor:
    places = [[float("nan")] * 4 if box is None else numbers(box) for box in example["boxes"]]
    whole = example["size"]
    boxes = torch.tensor(places) * torch.tensor([width / whole[0], height / whole[1]] * 2)
    return paint(torch.tensor(numbers(example["maps"][method][row])), boxes, height=height, width=width)
