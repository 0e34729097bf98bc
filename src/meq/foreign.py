"""Text that came from a file, fit to be shown: nothing in it moves a terminal's cursor, and it is never long."""

from __future__ import annotations

LONGEST = 600
"""Characters of one message. What is longer loses its middle: the place comes first, and what to do comes last."""
GAP = " [...] "


def shown(text: object, limit: int = LONGEST) -> str:
    """One line of at most `limit` printable characters; showing it a second time changes nothing."""
    return _cut(printable(_cut(str(text), limit)), limit)


def printable(text: str) -> str:
    """The text on one line; what would move a cursor or turn the direction of writing is spelled out, as \\x1b is."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    end = (limit - len(GAP)) // 3
    return f"{text[: limit - len(GAP) - end]}{GAP}{text[-end:]}"
