"""The words of a report without its markup, and what differs from machine to machine replaced by a name for it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

BLOCKS = {"p", "div", "section", "h1", "h2", "h3", "h4", "tr", "li", "dt", "dd", "figure", "figcaption", "summary"}
BLOCKS |= {"header", "footer", "main", "nav", "article", "table", "ul", "ol", "dl", "details", "pre", "title", "br"}
UNREAD = {"style", "script", "svg"}
"""What a reader does not read as text: the words of drawings belong to the drawing, whose look is tested elsewhere."""
LONGEST = 400
"""Characters kept of a line: the tests' data has texts of a hundred thousand."""
VARYING = (
    (re.compile(r"(?<![\w.])[0-9a-f]{12,64}\b(\.\.\.)?"), "HASH"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([+-]\d\d:\d\d| UTC)?"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DATE"),
    (re.compile(r"(/[\w<>=()\- ]+)*/meq-reports-\w+"), "FOLDER"),
    (re.compile(r"\b\d+(\.\d+)?\s?(s|ms|seconds|minutes|min|h|hours)\b"), "DURATION"),
    (re.compile(r"\b\d+\.\d+(\.\w+)+(\+\w+)?"), "VERSION"),
    (re.compile(r"^.*\d+ processors?, \d+ used, .*$", re.MULTILINE), "MACHINE"),
    (re.compile(r"^HASH.*$", re.MULTILINE), "HASH"),  # of a commit, with changes or without
    (re.compile(r"(?<=finished \| )(.*) \| \d+\.\d$", re.MULTILINE), r"\1 | SECONDS"),
    # steps until a residual is below a bound: rounding may decide on one more
    (re.compile(r"(within|at rest \|) \d+(?= steps| \|)"), r"\1 N"),
)


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self.unread = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.unread += tag in UNREAD
        if tag in BLOCKS:
            self.lines.append("")
        elif tag in ("td", "th") and self.lines[-1]:
            self.lines[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        self.unread -= tag in UNREAD
        if tag in BLOCKS:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self.unread:
            self.lines[-1] += data


def page_text(page: Path) -> str:
    """One line per paragraph, row of a table or heading."""
    reader = _Text()
    reader.feed(page.read_text(encoding="utf-8"))
    text = "\n".join(" ".join(line.split())[:LONGEST] for line in reader.lines if line.strip()) + "\n"
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return text
