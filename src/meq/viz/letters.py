"""Texts that come from elsewhere (labels, captions, names of files and columns), made fit to be shown."""

from __future__ import annotations

import html
import re

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, among them the escapes of terminals
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of the text around it
    "\u2028\u2029\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"  # line ends of their own, half characters
    "\U000e0000-\U000e007f]"  # tags, in which a second text can be hidden
)
MOST = 5000
"""Characters of one text on a page; a label of a hundred thousand would bury everything else."""
MARK = "\ufffd"
"""In place of each: one sees that something is there."""


def visible(text: str) -> str:
    """The text with a mark for every character that would change how the rest is shown instead of being shown.

    Letters of languages written from right to left are left alone: they need none of these to be shown rightly.
    """
    return UNSEEN.sub(MARK, text)


def escaped(text: str, most: int = MOST) -> str:
    """The text as HTML shows it, inside an element or an attribute; never as markup."""
    return html.escape(shortened(text, most), quote=True)


def shortened(text: str, most: int = MOST) -> str:
    """The visible text; of one longer than `most` characters the beginning, and how much was left out."""
    if len(text) <= most:
        return visible(text)
    return f"{visible(text[:most])}… ({len(text) - most:,} more characters)"


def clipped(text: str, most: int) -> str:
    """The visible text on one line of a figure: no more than `most` characters, the last one of a longer one a dot."""
    line = visible(text[: most + 1]).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= most else f"{line[: most - 1]}…"
