"""HTML from templates. One rule holds for the report and for the web page: a value is text unless it is Markup.

Text is shortened, shown without characters that would change the text around it, and escaped. Only our own code makes
Markup: the style of a page, and the data URIs of its pictures.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from meq.viz.text import shortened


@cache
def templates(package: str) -> Environment:
    """The templates of a package, which lie in its folder `templates`."""
    made = Environment(
        loader=PackageLoader(package), autoescape=True, finalize=_text, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters["short"] = shortened
    return made


def data_uri(content: bytes, kind: str) -> Markup:
    """A picture inside the page: no file is written for it, and no address of it exists."""
    return Markup(f"data:{kind};base64,{base64.b64encode(content).decode()}")


def encoded(picture: Image.Image, form: str, **options: Any) -> bytes:
    """The picture as a file of that form."""
    out = io.BytesIO()
    picture.convert("RGB").save(out, form, **options)
    return out.getvalue()


def _text(value: Any) -> Any:
    """How a template shows a value; None is shown as nothing."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else shortened(str(value))
