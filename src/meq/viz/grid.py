"""Rows are examples, columns are iterations: what the answer rests on at each step, and what it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from meq.core.options import checked_options
from meq.experiments.runs.explanation import Explanation, ModalityView
from meq.viz.colours import FAINT, INK, label_colours
from meq.viz.panels import (
    HEAT_MAP,
    POINTS,
    add_axes,
    add_text_axes,
    answer_colour,
    answer_words,
    draw_paragraphs,
    draw_picture,
    draw_strip,
    strengths,
    strips,
)
from meq.viz.style import MOST_OF_NAME, new_figure, plain, styled
from meq.viz.words import Paragraph, set_words, text_width

CELL, TALLEST, BETWEEN = 1.34, 1.9, 0.12
"""Inches: a column's width, the height a picture has at most, the space between columns."""
EDGE, HEADER, HEADING, ANSWER, STRIP, FOOTER, AFTER, SCALE = 0.18, 0.52, 0.27, 0.25, 0.24, 0.78, 0.2, 2.4
MOST_LABELS = 8
SEPARATOR = "  \N{MIDDLE DOT}  "


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


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One example, laid out."""

    explanation: Explanation
    columns: tuple[int, ...]
    """Places among the measured steps."""
    picture_height: float
    input_words: tuple[Paragraph, ...]
    words: tuple[tuple[Paragraph, ...], ...]
    """Per column."""

    @classmethod
    def of(cls, explanation: Explanation, steps: Sequence[int]) -> _Row:
        columns = tuple(explanation.row(step) for step in steps)
        tall = [CELL * view.picture.height / view.picture.width for view in explanation.pictures if view.picture]
        return cls(
            explanation=explanation,
            columns=columns,
            picture_height=min(max(tall, default=0.0), TALLEST),
            input_words=_paragraphs(explanation, columns[0]),
            words=tuple(_paragraphs(explanation, column) for column in columns),
        )

    @property
    def height(self) -> float:
        pictures = (self.picture_height + 0.06) * len(self.explanation.pictures)
        return HEADING + pictures + STRIP * len(strips(self.explanation)) + ANSWER + self.words_height + AFTER

    @property
    def words_height(self) -> float:
        return sum(paragraph.height for paragraph in self.input_words) / POINTS + 0.04

    def draw(self, figure: Figure, top: float) -> None:
        axes = add_text_axes(figure, EDGE, top, figure.get_size_inches()[0] - 2 * EDGE, HEADING)
        axes.text(0, HEADING * POINTS / 2, _heading(self.explanation, axes.get_xlim()[1]), va="center", fontsize=8.5)
        for place in range(-1, len(self.columns)):
            self._draw_column(figure, place, EDGE + (place + 1) * (CELL + BETWEEN), top + HEADING)

    def _draw_column(self, figure: Figure, place: int, left: float, top: float) -> None:
        """The input (-1), or one step."""
        row = None if place < 0 else self.columns[place]
        colour = FAINT if row is None else answer_colour(self.explanation, row)
        for view in self.explanation.pictures:
            draw_picture(add_axes(figure, left, top, CELL, self.picture_height), view, row, border=colour)
            top += self.picture_height + 0.06
        for view in strips(self.explanation):
            _strip_cell(figure, view, row, left, top)
            top += STRIP
        axes = add_text_axes(figure, left, top, CELL, ANSWER)
        said = _truth(self.explanation) if row is None else answer_words(self.explanation, row)
        size = min(8.0, 8.0 * CELL * POINTS / max(text_width(said, 8.0), 1.0))
        axes.text(
            CELL * POINTS / 2, ANSWER * POINTS / 2, said, fontsize=size, va="center", ha="center", color=_dark(colour)
        )
        words = self.input_words if row is None else self.words[place]
        draw_paragraphs(
            add_text_axes(figure, left, top + ANSWER, CELL, self.words_height), words, shaded=row is not None
        )


def _paragraphs(explanation: Explanation, row: int) -> tuple[Paragraph, ...]:
    return tuple(set_words(strengths(view, row), width=CELL * POINTS) for view in explanation.texts)


def _strip_cell(figure: Figure, view: ModalityView, row: int | None, left: float, top: float) -> None:
    if row is not None:
        draw_strip(add_axes(figure, left, top + 0.03, CELL, STRIP - 0.06), view, row)
        return
    axes = add_text_axes(figure, left, top, CELL, STRIP)
    axes.text(
        0, STRIP * POINTS / 2, plain(f"{view.name}, {view.attribution.shape[1]} tokens"), fontsize=7.5, va="center"
    )


def _truth(explanation: Explanation) -> str:
    return "" if explanation.target is None else plain(f"truth: {explanation.labels[explanation.target]}")


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
    axes = add_text_axes(figure, EDGE, EDGE, wide, HEADER)
    axes.text(0, 2, plain(title), fontsize=10.5, fontweight="bold", va="top", color=INK)
    for place, name in enumerate(["input", *(_column_name(step, explanation.read) for step in steps)]):
        middle = (place * (CELL + BETWEEN) + CELL / 2) * POINTS
        read = place > 0 and steps[place - 1] == explanation.read
        weight = "bold" if read else "normal"
        axes.text(middle, HEADER * POINTS - 3, name, fontsize=8.5, ha="center", va="bottom", fontweight=weight)


def _column_name(step: int, read: int) -> str:
    if step == read:
        return f"k = K = {step}, read"
    return "k = 0, start" if step == 0 else f"k = {step}"


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
    axes = add_text_axes(figure, EDGE, top + legend, wide, FOOTER)
    axes.text(0, 11, "heat and shade: share of a token in its modality", fontsize=8.5, va="center")
    scale = add_axes(figure, EDGE, top + legend + 0.27, SCALE, 0.11)
    scale.imshow([[step / 255 for step in range(256)]], cmap=HEAT_MAP, aspect="auto")
    axes.text(0, 34, "none", fontsize=8, va="center")
    axes.text(SCALE * POINTS, 34, "the row's largest", fontsize=8, va="center", ha="right")
    axes.text(0, FOOTER * POINTS - 2, _method_note(explanations), fontsize=8, color=FAINT, va="bottom")


def _legend_height(explanation: Explanation, wide: float) -> float:
    """Nothing for a number, and for more labels than colours can tell apart."""
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
