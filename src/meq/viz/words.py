"""Words of a text in lines, each on the shade of its own strength."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path

from meq.viz.colours import ink_on, shade
from meq.viz.letters import clipped
from meq.viz.style import MOST_LETTERS, plain

LEADING, GAP = 1.45, 0.28
"""Of lines and between words, in font sizes."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word before it is placed."""

    word: str
    strength: float
    """Between 0 and 1."""
    close: bool = False
    """There is no space between it and the word before, as before a comma."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A word and where it stands, in points from the upper left corner."""

    word: str
    strength: float
    """Between 0 and 1."""
    left: float
    top: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Words in lines of a given width."""

    placed: tuple[Placed, ...]
    size: float
    height: float
    """All in points."""


def set_words(words: Sequence[Word], *, width: float, size: float = 7.5, most_lines: int = 16) -> Paragraph:
    """Lines of at most `width` points; what goes beyond `most_lines` is left out, and an ellipsis says so."""
    placed: list[Placed] = []
    left, line = 0.0, 0
    for each in words:
        word = _fitting(clipped(each.word, MOST_LETTERS), width, size)
        wide = text_width(word, size)
        before = 0.0 if left == 0 or each.close else GAP * size
        if left and left + before + wide > width:
            if line + 1 == most_lines:
                placed = _with_ellipsis(placed, width, size)
                break
            left, before, line = 0.0, 0.0, line + 1
        top = line * LEADING * size
        placed.append(Placed(word=word, strength=each.strength, left=left + before, top=top, width=wide))
        left += before + wide
    return Paragraph(placed=tuple(placed), size=size, height=(line + 1) * LEADING * size if placed else 0.0)


def draw_words(axes: Axes, paragraph: Paragraph, *, top: float = 0.0, shaded: bool = True) -> None:
    """The paragraph in axes that measure points, beginning `top` points below their upper left corner."""
    tall = paragraph.size * 1.3
    for each in paragraph.placed:
        background = shade(each.strength) if shaded else "#ffffff"
        if shaded and each.strength > 0:
            axes.add_patch(
                Rectangle((each.left - 0.8, top + each.top), each.width + 1.6, tall, color=background, linewidth=0)
            )
        axes.text(
            each.left, top + each.top + tall / 2, plain(each.word), fontsize=paragraph.size, color=ink_on(background),
            va="center_baseline", ha="left",
        )  # fmt: skip


def text_width(text: str, size: float) -> float:
    """In points."""
    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(family="DejaVu Sans", size=size), False
    )
    return float(width)


def _fitting(word: str, width: float, size: float) -> str:
    """The word, cut visibly where it is wider than a line."""
    word = word[:200]
    if text_width(word, size) <= width:
        return word
    while word and text_width(f"{word}\N{HORIZONTAL ELLIPSIS}", size) > width:
        word = word[:-1]
    return f"{word}\N{HORIZONTAL ELLIPSIS}"


def _with_ellipsis(placed: list[Placed], width: float, size: float) -> list[Placed]:
    """Without the last words of the last line, as many as it takes to have room for an ellipsis."""
    wide = text_width("\N{HORIZONTAL ELLIPSIS}", size)
    top, kept = placed[-1].top, list(placed)
    while kept and kept[-1].top == top and kept[-1].left + kept[-1].width + wide > width:
        kept.pop()
    left = kept[-1].left + kept[-1].width if kept and kept[-1].top == top else 0.0
    return [*kept, Placed(word="\N{HORIZONTAL ELLIPSIS}", strength=0.0, left=left, top=top, width=wide)]
