"""Texts that come from elsewhere (labels, captions, names of files), made fit to be shown and set in lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, among them the escapes of terminals
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of the text around it
    "\u2028\u2029\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"  # line ends of their own, half characters
    "\U000e0000-\U000e007f]"  # tags, in which a second text can be hidden
)
MARK = "\ufffd"
"""Shown in place of each such character, so that one sees that something is there."""
MOST = 5000
"""Characters of one text on a page; a label of a hundred thousand would bury everything else."""
MOST_LETTERS = 120
"""Characters of one text in a figure."""
LEADING, GAP = 1.45, 0.28
"""The height of a line, and the space between words, in font sizes."""
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

Measure = Callable[[str, float], float]
"""The width of a text at a font size."""


def visible(text: str) -> str:
    """The text with a mark for every character that would change how the rest is shown instead of being shown.

    Letters of languages written from right to left are left alone: they need none of these to be shown rightly.
    """
    return UNSEEN.sub(MARK, text)


def shortened(text: str, most: int = MOST) -> str:
    """The visible text; of one longer than `most` characters the beginning, and how much was left out."""
    if len(text) <= most:
        return visible(text)
    return f"{visible(text[:most])}… ({len(text) - most:,} more characters)"


def clipped(text: str, most: int) -> str:
    """The visible text on one line of a figure; of one longer than `most` characters the beginning, and an ellipsis."""
    line = visible(text[: most + 1]).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= most else f"{line[: most - 1]}{ELLIPSIS}"


def text_width(text: str, size: float) -> float:
    """The width of a text in a figure, in points."""
    from matplotlib.font_manager import FontProperties  # on use: matplotlib is optional, and slow to import
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word before it is placed."""

    word: str
    strength: float = 0.0
    """Between 0 and 1: how much it counts, which is drawn as a shade."""
    close: bool = False
    """There is no space between it and the word before, as before a comma."""
    new_line: bool = False
    """It begins a line."""


@dataclass(frozen=True, kw_only=True)
class PlacedWord:
    """A word and where it stands, from the upper left corner of its paragraph."""

    word: str
    strength: float
    left: float
    top: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Words in lines; all lengths in the unit of the measure, points in figures and pixels on sheets."""

    placed: tuple[PlacedWord, ...]
    size: float
    height: float


def words_of(text: str) -> list[Word]:
    """The words of a plain text, its line breaks kept."""
    lines = text.splitlines() or [""]
    return [Word(word=word, new_line=place == 0) for line in lines for place, word in enumerate(line.split() or [""])]


def set_words(
    words: Sequence[Word],
    *,
    width: float,
    size: float = 7.5,
    most_lines: int = 16,
    measure: Measure = text_width,
    ellipsis: str = ELLIPSIS,
) -> Paragraph:
    """Lines of at most `width`; what goes beyond `most_lines` is left out, and an ellipsis says so."""
    placed: list[PlacedWord] = []
    left, line = 0.0, 0
    for each in words:
        word = _fitting(clipped(each.word, MOST_LETTERS), ellipsis, lambda text: measure(text, size) <= width)
        wide = measure(word, size)
        before = 0.0 if left == 0 or each.close else GAP * size
        if placed and (each.new_line or (left and left + before + wide > width)):
            if line + 1 == most_lines:
                end = PlacedWord(
                    word=ellipsis, strength=0.0, left=0.0, top=placed[-1].top, width=measure(ellipsis, size)
                )
                placed = _ended(placed, end, width)
                break
            left, before, line = 0.0, 0.0, line + 1
        top = line * LEADING * size
        placed.append(PlacedWord(word=word, strength=each.strength, left=left + before, top=top, width=wide))
        left += before + wide
    return Paragraph(placed=tuple(placed), size=size, height=(line + 1) * LEADING * size if placed else 0.0)


def _fitting(word: str, ellipsis: str, fits: Callable[[str], bool]) -> str:
    """The word, cut visibly where it does not fit into a line."""
    if fits(word):
        return word
    while word and not fits(f"{word}{ellipsis}"):
        word = word[:-1]
    return f"{word}{ellipsis}"


def _ended(placed: Sequence[PlacedWord], end: PlacedWord, width: float) -> list[PlacedWord]:
    """The words with an ellipsis at the end of the last line, from which as many words go as it takes."""
    kept = list(placed)
    while kept and kept[-1].top == end.top and kept[-1].left + kept[-1].width + end.width > width:
        kept.pop()
    left = kept[-1].left + kept[-1].width if kept and kept[-1].top == end.top else 0.0
    return [*kept, replace(end, left=left)]
