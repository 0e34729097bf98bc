"""The page around the sections: one file that asks for nothing, whatever stands in it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from meq.viz.report.markup import Html, Part, join, tag

STYLE = "style.css"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report with a place in its contents."""

    anchor: str
    title: str
    content: Html
    parts: tuple[Section, ...] = ()
    """Sections that follow it, and stand below it in the contents."""


def make_page(title: str, lead: Sequence[Part], sections: Sequence[Section], *, footer: str) -> str:
    """The whole document. Scripts and requests are forbidden, styles are those of this file."""
    style = (files("meq.viz.report") / STYLE).read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", of={"charset": "utf-8"}),
        tag("meta", of={"http-equiv": "Content-Security-Policy", "content": policy(style)}),
        tag("meta", of={"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", of={"name": "color-scheme", "content": "light dark"}),
        tag("title", title),
        Html(f"<style>{style}</style>"),
    )
    contents = [_entry(each) for each in sections]
    body = tag(
        "body",
        tag("header", tag("h1", title), lead),
        tag("nav", tag("ul", contents), of={"aria-label": "Contents"}) if len(sections) > 1 else None,
        tag("main", [_section(each) for each in sections]),
        tag("footer", tag("p", footer)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, of={'lang': 'en'})}\n"


def policy(style: str) -> str:
    """Nothing may be loaded but pictures that are in the file, and no style but this one."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _entry(section: Section) -> Html:
    """Its line in the contents, and those of its parts."""

    def line(each: Section, **kind: str) -> Html:
        return tag("li", tag("a", each.title, of={"href": f"#{each.anchor}"}), of=kind)

    if not section.parts:
        return line(section)
    return join(line(section, **{"class": "parent"}), [line(part, **{"class": "sub"}) for part in section.parts])


def _section(section: Section, *, of: str = "") -> Html:
    """The section and its parts, whose titles say what they are parts of."""
    words = f"{of}: {section.title[:1].lower()}{section.title[1:]}" if of else section.title
    title = tag("h2", words, of={"id": f"{section.anchor}-title"})
    named = {"id": section.anchor, "aria-labelledby": f"{section.anchor}-title"}
    name = section.title.partition(": ")[2]
    return join(tag("section", title, section.content, of=named), [_section(part, of=name) for part in section.parts])
