"""Figures as parts of a page: data URIs, so that there is nothing beside the file."""

from __future__ import annotations

import base64
import io

from matplotlib.figure import Figure
from PIL import Image

from meq.viz.report.markup import Html, scrolling, tag
from meq.viz.style import as_png, as_svg

QUALITY = 84
LARGE_SVG = 250_000
"""Bytes from which on a drawing of many points is smaller as a picture of pixels."""


def drawing(figure: Figure, *, alt: str, caption: str) -> Html:
    """A figure of lines, sharp at every size; `alt` says what it shows to those who do not see it."""
    content, kind = as_svg(figure), "image/svg+xml"
    if len(content) > LARGE_SVG:
        content, kind = _webp(Image.open(io.BytesIO(as_png(figure)), formats=["PNG"])), "image/webp"
    inches = figure.get_size_inches()[0]
    return _figure(content, kind, alt=alt, caption=caption, classes="small" if inches < 7 else "large")


def photograph(figure: Figure, *, alt: str, caption: str) -> Html:
    """A figure with pictures in it, as wide as it needs to be: on a phone it scrolls in its box."""
    picture = Image.open(io.BytesIO(as_png(figure, dpi=120)), formats=["PNG"])
    return _figure(_webp(picture), "image/webp", alt=alt, caption=caption, classes="photograph")


def thumbnail(picture: Image.Image, *, alt: str) -> Html:
    return tag("img", of={"src": uri(_webp(picture), "image/webp"), "alt": alt, "class": "thumbnail"})


def uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _figure(content: bytes, kind: str, *, alt: str, caption: str, classes: str) -> Html:
    image = tag("img", of={"src": uri(content, kind), "alt": alt})
    held = scrolling(image, caption)
    return tag("figure", held, tag("figcaption", caption), of={"class": f"card {classes}"})


def _webp(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.convert("RGB").save(out, "WEBP", quality=QUALITY, method=4)
    return out.getvalue()
