"""HTML that is put together from escaped parts: what is not markup already becomes text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from meq.experiments.render import Table
from meq.viz.letters import escaped, shortened

VOID = ("img", "br", "meta")
WHOLE = ("src", "href", "content")
"""Attributes that only we write, and that would be wrong if they were shortened."""
MANY_COLUMNS = 9
"""From which on a table is set smaller on paper, where it cannot scroll."""


class Html(str):
    """Text that is markup; a plain string is never taken for it."""


Part = str | Html | None
"""None is left out."""


def tag(name: str, *parts: Part | Iterable[Part], of: dict[str, str] | None = None) -> Html:
    """An element with attributes `of`; strings among its parts are escaped."""
    attributes = "".join(f' {key}="{_value(key, value)}"' for key, value in (of or {}).items())
    if name in VOID:
        return Html(f"<{name}{attributes}>")
    return Html(f"<{name}{attributes}>{join(*parts)}</{name}>")


def join(*parts: Part | Iterable[Part]) -> Html:
    """Parts after one another."""
    return Html("".join(_escaped(part) for part in parts))


def paragraph(*parts: Part) -> Html:
    return tag("p", *parts)


def note(*parts: Part) -> Html:
    """Small print."""
    return tag("p", *parts, of={"class": "note"})


def warning(*parts: Part) -> Html:
    """What the reader must not miss."""
    return tag("p", *parts, of={"class": "warning"})


def bullets(items: Sequence[Part]) -> Html:
    return tag("ul", [tag("li", item) for item in items])


def code(text: str) -> Html:
    return tag("code", text)


def facts(pairs: Sequence[tuple[str, Part]]) -> Html:
    """Names with what is to be said of them."""
    return tag("dl", [join(tag("dt", name), tag("dd", value)) for name, value in pairs])


def scrolling(content: Html, label: str) -> Html:
    """Wide content scrolls in its own box, by keyboard as well; the page does not."""
    return tag("div", content, of={"class": "scroll", "role": "region", "aria-label": label, "tabindex": "0"})


def grid(head: Sequence[Part], rows: Sequence[Sequence[Part]], *, caption: str, right: Sequence[bool]) -> Html:
    """A table; the first cell of a row is its header, and `right` says which columns hold numbers."""

    def shape(at: int, scope: str | None = None) -> dict[str, str]:
        return ({"scope": scope} if scope else {}) | ({"class": "number"} if right[at] else {})

    top = tag("tr", [tag("th", cell, of=shape(at, "col")) for at, cell in enumerate(head)])
    lines = [
        tag("tr", [_cell(cell, shape(at, "row" if at == 0 else None)) for at, cell in enumerate(row)]) for row in rows
    ]
    dense = {"class": "dense"} if len(head) > MANY_COLUMNS else None
    made = tag("table", tag("caption", caption), tag("thead", top), tag("tbody", lines), of=dense)
    return scrolling(made, caption)


def table(content: Table) -> Html:
    """A table of a study or a run, with its notes below."""
    titles = [column.title for column in content.columns]
    made = grid(titles, content.cells(), caption=content.title, right=content.right())
    return tag("div", made, [note(each) for each in content.notes], of={"class": "block"})


def _cell(cell: Part, attributes: dict[str, str]) -> Html:
    return tag("th" if "scope" in attributes else "td", cell, of=attributes)


def _value(key: str, value: str) -> str:
    """An attribute; whole pictures stand in some, all other texts are kept in bounds."""
    return html.escape(value, quote=True) if key in WHOLE else escaped(value)


def _escaped(part: Part | Iterable[Part]) -> str:
    if part is None:
        return ""
    if isinstance(part, Html):
        return part
    if isinstance(part, str):
        return html.escape(shortened(part), quote=False)
    return "".join(_escaped(each) for each in part)
