"""The page of a report: sections from templates, pictures inside the file, and a policy against anything else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from markupsafe import Markup
from PIL import Image

from meq.viz.style import Drawing, as_pixels, as_svg
from meq.viz.templating import data_uri, encoded, templates

PACKAGE = "meq.viz.report"
QUALITY = {"quality": 84, "method": 4}
LARGE_SVG = 250_000
"""Bytes from which on a drawing of many points is smaller as a picture of pixels."""
SMALL_INCHES = 7
"""A figure that is less wide stands beside another."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report with a place in its contents: a macro of a template, and what it shows."""

    title: str
    template: str
    macro: str
    context: Mapping[str, Any]
    anchor: str = ""
    parts: tuple[Section, ...] = ()
    """Sections that follow it, and stand below it in the contents."""


def make_sections(
    template: str, titles: Mapping[str, str], context: Mapping[str, Any], *, about: str, prefix: str = ""
) -> list[Section]:
    """A section for every macro that has a title; the one called "about" has the anchor `about`."""
    anchors = {macro: f"{prefix}{about if macro == 'about' else macro}" for macro in titles}
    return [
        Section(anchor=anchors[macro], title=title, template=template, macro=macro, context=context)
        for macro, title in titles.items()
    ]


EmbeddedPicture = dict[str, str]
"""A picture as the templates show it: uri and alt; of a drawing also caption, size and group."""


def make_page(lead: Section, sections: Iterable[Section], *, folder: str) -> str:
    """The whole document; `lead` is what stands above the contents, under the title of the page."""
    style = (files(PACKAGE) / "templates" / "style.css").read_text(encoding="utf-8")
    page = templates(PACKAGE).get_template("page.html")
    return page.render(lead=lead, sections=list(sections), folder=folder, style=Markup(style), policy=policy(style))


def policy(style: str) -> str:
    """Nothing may be loaded but pictures that are in the file, and no style but this one."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def embedded(drawings: Mapping[str, Iterable[Drawing]]) -> dict[str, list[EmbeddedPicture]]:
    """The drawings of every place, as data URIs."""
    return {place: [_embedded(each) for each in found] for place, found in drawings.items()}


def thumbnail(picture: Image.Image, alt: str) -> EmbeddedPicture:
    return {"uri": _webp(picture), "alt": alt}


def in_words(value: Any) -> str:
    """An option of any kind, in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {in_words(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(in_words(each) for each in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _embedded(drawing: Drawing) -> EmbeddedPicture:
    """Lines as SVG, sharp at every size; a figure with pictures in it as pixels, which scrolls on a phone."""
    size = "small" if drawing.figure.get_size_inches()[0] < SMALL_INCHES else "large"
    if drawing.photograph:
        uri, size = _webp(as_pixels(drawing.figure, dpi=120)), "photograph"
    elif len(content := as_svg(drawing.figure)) > LARGE_SVG:
        uri = _webp(as_pixels(drawing.figure))
    else:
        uri = data_uri(content, "image/svg+xml")
    return {"uri": uri, "alt": drawing.alt, "caption": drawing.caption, "size": size, "group": drawing.group}


def _webp(picture: Image.Image) -> Markup:
    return data_uri(encoded(picture, "WEBP", **QUALITY), "image/webp")
