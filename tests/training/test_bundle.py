from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from training.small import train_small

from meq.training.bundle import as_code, card, escaped, read_task
from meq.training.record import EncoderFacts, RunRecord

PARTS = {
    *("heading_open", "heading_close", "inline", "text", "text_special", "fence", "paragraph_open", "paragraph_close"),
    *("bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close", "code_inline", "softbreak"),
    *("table_open", "table_close", "thead_open", "thead_close", "tbody_open", "tbody_close"),
    *("tr_open", "tr_close", "th_open", "th_close", "td_open", "td_close"),
}
"""What a card is made of: no links, no pictures, no emphasis, no HTML."""
HOSTILE = [
    "<script>alert(1)</script>",
    "a | b",
    "`rm`",
    "![x](http://evil/x.png)",
    "two\nlines",
    "---\nlicense: evil\n---",
    "# heading",
    "[click](javascript:alert(1))",
    "<img src=x onerror=alert(1)>",
    "\x1b[31mred\u202e",
    "a_b *c* ~~d~~ $e$",
    "www.evil.com me@evil.com",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    folder = tmp_path_factory.mktemp("run")
    return folder, train_small(folder, epochs=1)


@pytest.mark.parametrize("word", HOSTILE)
def test_nothing_of_the_data_is_markup_in_the_model_card(recorded: tuple[Path, RunRecord], word: str) -> None:
    """Read by a parser of Markdown: the card has the same parts whatever the names in it are, and shows them."""
    folder, record = recorded
    task = read_task(folder / "model" / "task.json")
    made_by = EncoderFacts(name=word, revision=word, sha256="0" * 64)
    odd = replace(task, data=word, labels=(word, "no"), metric=word, widths={word: 3}, encoders={word: made_by})
    said = card(odd, replace(record, metrics={word: {word: 0.5}}))
    _, head, body = said.split("---\n", 2)
    assert head == "library_name: meq\ntags:\n- multimodal\n- deep-equilibrium\n", "the front matter is ours"
    read = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body)
    parts = [part.type for token in read for part in (token, *(token.children or []))]
    assert set(parts) <= PARTS, set(parts) - PARTS
    assert parts.count("heading_open") == parts.count("fence") == parts.count("table_open") == 1
    assert parts.count("paragraph_open") == 4
    shown = "".join(part.content for token in read for part in token.children or [])
    assert shown.count(" ".join("".join(x if x.isprintable() else " " for x in word).split())) >= 6
    words = "".join(part.content for token in read for part in token.children or [] if part.type == "code_inline")
    for address in ("www.", "me@"):
        assert body.count(address) == words.count(address), "nor an address that the Hub would make a link of"


def test_ordinary_names_stay_as_they_are() -> None:
    assert escaped("New York, 3.5 kg / left-of (yes)") == "New York, 3.5 kg / left-of (yes)"
    assert as_code("image") == "`image`"
    assert as_code("clip-vit/base.16") == "`clip-vit/base.16`"
    assert as_code("a`b") == "a\\`b"
    assert escaped("R&D <b>") == "R&amp;D &lt;b&gt;"
