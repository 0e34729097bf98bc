"""One explanation in motion: a still of every step, all of them as a small GIF or WebP, and every picture of it."""

from __future__ import annotations

import io
from pathlib import Path

import meq.viz.needs  # noqa: F401

# isort: split
from matplotlib.figure import Figure
from PIL import Image

from meq.options import checked_options, nearest
from meq.records import write_bytes
from meq.runs.explanation import Contrast, Explanation
from meq.viz.colours import FAINT, INK, MOST_CLASSES, PALETTE, RULE, class_colours
from meq.viz.curves import probability_along_k
from meq.viz.grid import (
    POINTS,
    add_axes,
    add_text_axes,
    answer_colour,
    answer_words,
    draw_paragraphs,
    draw_picture,
    draw_strip,
    explanation_grid,
    strengths,
    strips,
)
from meq.viz.style import MOST_OF_NAME, as_pixels, new_figure, plain, save, styled, whole_decades
from meq.viz.text import set_words

FORMS = (".gif", ".webp")
DPI, COLOURS = 100, 128
EACH_MS, LONGER_MS = 650, 1800
"""How long a step is shown; longer the one that is read, and the last."""
EDGE, TITLE, PICTURE, RIGHT, WIDE = 0.2, 0.38, 3.0, 3.1, 6.9
STRIP, BAR, RESIDUALS = 0.3, 0.27, 1.25


def check_form(form: str) -> None:
    """An error for an animation that cannot be written, before anything is computed."""
    if f".{form}" not in FORMS:
        raise ValueError(f"there is no animation {form!r}: {nearest(form, [suffix[1:] for suffix in FORMS])}")


def draw_explanation(found: Explanation | Contrast, folder: Path, *, form: str = "gif") -> list[Path]:
    """The grid as explanation.png and .svg, the animation, and for a contrast its curves; the files, in that order."""
    check_form(form)
    shown = [found.matched, found.mismatched] if isinstance(found, Contrast) else [found]
    files = [*save(explanation_grid(shown), folder / "explanation"), animate(shown[0], folder / f"explanation.{form}")]
    if isinstance(found, Contrast) and found.matched.probabilities is not None:
        files += save(probability_along_k(found), folder / "contrast")
    return files


@checked_options
def snapshot(explanation: Explanation, row: int) -> Figure:
    """One measured step: heat map, probabilities, residuals so far, shaded words."""
    with styled():
        words = [
            set_words(strengths(view, row), width=(WIDE - 2 * EDGE) * POINTS, size=11, most_lines=6)
            for view in explanation.texts
        ]
        bars = BAR * min(len(explanation.labels), MOST_CLASSES) + RESIDUALS + 0.75
        upper = max(bars, PICTURE if explanation.pictures else 0.0)
        lower = sum(paragraph.height for paragraph in words) / POINTS + STRIP * len(strips(explanation))
        figure = new_figure(WIDE, EDGE + TITLE + upper + 0.14 + lower + 0.34, constrained=False)
        title = add_text_axes(figure, EDGE, EDGE, WIDE - 2 * EDGE, TITLE)
        step, read, colour = explanation.steps[row], explanation.read, answer_colour(explanation, row)
        when = f"k = {step}" + (" = K, the step that is read" if step == read else f"   (read at K = {read})")
        title.text(0, 0, when, fontsize=12, fontweight="bold", va="top")
        said = answer_words(explanation, row)
        title.text(title.get_xlim()[1], 0, said, fontsize=12, va="top", ha="right", color=colour)
        for view in explanation.pictures[:1]:
            axes = add_axes(figure, EDGE + 0.03, EDGE + TITLE, PICTURE, min(upper, PICTURE))
            draw_picture(axes, view, row, border=colour, pixels=320)
        _draw_right(figure, explanation, row)
        top = EDGE + TITLE + upper + 0.14
        for view in strips(explanation):
            draw_strip(add_axes(figure, EDGE, top, WIDE - 2 * EDGE, STRIP - 0.1), view, row)
            top += STRIP
        draw_paragraphs(add_text_axes(figure, EDGE, top, WIDE - 2 * EDGE, max(lower, 0.1)), words)
        label = plain(explanation.explained_label, MOST_OF_NAME)
        note = f"heat and shades: {explanation.method}, of {label!r}; one scale for all steps"
        wide, tall = figure.get_size_inches()
        figure.text(EDGE / wide, 0.09 / tall, note, fontsize=7.5, color=FAINT, va="bottom")
    return figure


@checked_options
def animate(explanation: Explanation, path: Path | str) -> Path:
    """Write all measured steps to a .gif or .webp, whole or not at all."""
    path = Path(path)
    if path.suffix.lower() not in FORMS:
        raise ValueError(f"{path}: an animation ends in .gif or .webp: {nearest(path.suffix, FORMS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, animation_bytes(explanation, form=path.suffix[1:].lower()))
    return path


@checked_options
def animation_bytes(explanation: Explanation, *, form: str = "gif") -> bytes:
    """All measured steps, one after the other, for ever."""
    check_form(form)
    frames = [as_pixels(snapshot(explanation, row), dpi=DPI) for row in range(len(explanation.steps))]
    ends = (explanation.read, explanation.steps[-1])
    durations = [LONGER_MS if step in ends else EACH_MS for step in explanation.steps]
    out = io.BytesIO()
    if form == "gif":
        # one palette for all frames, so that what stands still does not flicker; dithering would not compress
        sample = Image.new("RGB", (frames[0].width, 3 * frames[0].height))
        for place, frame in enumerate((frames[0], frames[len(frames) // 2], frames[-1])):
            sample.paste(frame, (0, place * frame.height))
        palette = sample.quantize(COLOURS, method=Image.Quantize.MEDIANCUT)
        frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    frames[0].save(
        out, format=form, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True,
        **({} if form == "gif" else {"quality": 80, "method": 4}),
    )  # fmt: skip
    return out.getvalue()


def _draw_right(figure: Figure, explanation: Explanation, row: int) -> None:
    left = EDGE + PICTURE + 0.3 if explanation.pictures else EDGE
    width = WIDE - EDGE - left
    top = EDGE + TITLE
    if explanation.probabilities is not None:
        top += _draw_bars(figure, explanation, row, (left, top, width))
    axes = add_axes(figure, left + 0.55, top + 0.3, width - 0.55, RESIDUALS)
    axes.set_axis_on()
    for place, (name, values) in enumerate(explanation.residuals.items()):
        colour = PALETTE[place % len(PALETTE)]
        axes.plot(explanation.steps, values.tolist(), color=colour, linewidth=1.2, label=plain(name, MOST_OF_NAME))
        axes.plot([explanation.steps[row]], [float(values[row])], marker="o", color=colour)
    whole_decades(axes, [value for values in explanation.residuals.values() for value in values.tolist()])
    axes.axvline(explanation.steps[row], color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_title("residual of the undamped map along k", fontsize=8.5, fontweight="normal", loc="left", pad=4)
    axes.tick_params(labelsize=7.5)
    axes.legend(fontsize=7.5, loc="upper right", borderaxespad=0.1, handlelength=1.2)


def _draw_bars(figure: Figure, explanation: Explanation, row: int, place: tuple[float, float, float]) -> float:
    """Probabilities of the classes that the model considers most at K; how much height they took."""
    assert explanation.probabilities is not None
    left, top, width = place
    shown = class_colours(explanation)
    height = BAR * len(shown)
    axes = add_text_axes(figure, left, top, width, height)
    name_room, number_room = 0.42 * width * POINTS, 34.0
    room = width * POINTS - name_room - number_room
    for number, (which, colour) in enumerate(shown.items()):
        middle, value = (number + 0.5) * BAR * POINTS, float(explanation.probabilities[row, which])
        axes.text(name_room - 5, middle, plain(explanation.labels[which], 16), fontsize=9, va="center", ha="right")
        axes.barh(middle, room, left=name_room, height=0.6 * BAR * POINTS, color=RULE, alpha=0.5)
        axes.barh(middle, room * value, left=name_room, height=0.6 * BAR * POINTS, color=colour)
        axes.text(name_room + room + 4, middle, f"{value:.2f}", fontsize=9, va="center", color=INK)
    axes.set_xlim(0, width * POINTS)
    axes.set_ylim(height * POINTS, 0)
    return height + 0.12
