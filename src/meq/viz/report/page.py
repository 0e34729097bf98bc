"""The page around the sections: one file that asks for nothing, whatever stands in it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from meq.viz.report.markup import Html, Part, tag

STYLE = "style.css"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report with a place in its contents."""

    anchor: str
    title: str
    content: Html


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
    contents = [tag("li", tag("a", each.title, of={"href": f"#{each.anchor}"})) for each in sections]
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


def _section(section: Section) -> Html:
    title = tag("h2", section.title, of={"id": f"{section.anchor}-title"})
    of = {"id": section.anchor, "aria-labelledby": f"{section.anchor}-title"}
    return tag("section", title, section.content, of=of)
