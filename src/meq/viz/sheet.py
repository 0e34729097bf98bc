"""A few examples of a data set, in words and as a sheet of cards: what it asks, to be understood at a glance.

Pillow draws it, so that `meq data show` needs no matplotlib.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from meq.data.content import Content, Picture, Regions, Sound
from meq.data.contract import DataSet, Example
from meq.data.findings import DataError
from meq.errors import printable
from meq.options import nearest
from meq.records import write_bytes
from meq.viz.colours import INK, fitted
from meq.viz.text import Paragraph, set_words, words_of

SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
WIDTH, PICTURE, MARGIN, GAP = 300, 276, 12, 20
"""Pixels: of a card, of the picture in it, within it, and between cards."""
TEXT, SMALL, PILL = 16, 12, 34
"""Pixels of letters, of small print, and of the label's height."""
PAPER, CARD, FAINT, LINE = "#f4f2ee", "#ffffff", "#777c85", "#dcd9d2"
TINTS = ("#2f7d4f", "#8a6d1f", "#b23a3a", "#2f5f9e", "#6f4a9e", "#3a7f86", "#a0522d", "#555b66")
"""A label's colour, by its place among the labels."""
MOST_LINES, LONGEST = 6, 2000
"""Lines of a text, and letters looked at: a page of text is not drawn."""
SHOWN_FACTS = ("kind", "hops", "question_type", "answer_type", "class")
"""Facts that are worth a line; others are for programs."""


def choose_examples(data: DataSet, split: str, count: int, *, seed: int = 0) -> list[Example]:
    """The first examples of a split, or, with another seed, drawn ones."""
    if split not in data.splits:
        raise DataError(f"{data.name} has no split {split!r}: {nearest(split, data.splits)}")
    examples = data.splits[split]
    places = list(range(min(count, len(examples))))
    if seed:
        places = sorted(random.Random(seed).sample(range(len(examples)), len(places)))
    return [examples[place] for place in places]


def describe_examples(data: DataSet, examples: Sequence[Example]) -> str:
    """A paragraph per example: id, label, and what each modality holds."""
    told = "\n\n".join(_describe(data, example) for example in examples)
    return "\n".join(map(printable, told.split("\n")))  # texts can hold what would move a terminal's cursor


def check_sheet(path: Path) -> None:
    """An error if no sheet can be drawn there; worth asking before the data is read."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: a sheet is drawn as {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise DataError(f"{path}: nothing can be written there; choose another place")


def save_sheet(data: DataSet, examples: Sequence[Example], path: Path) -> None:
    """Draw the examples into a picture file, whole or not at all."""
    check_sheet(path)
    sheet = draw_sheet(examples, data.labels, caption=str(data.facts.get("rule", "")))
    content = io.BytesIO()
    sheet.save(content, SUFFIXES[path.suffix.lower()])
    write_bytes(path, content.getvalue())


def draw_sheet(
    examples: Sequence[Example], labels: Sequence[str], *, columns: int = 4, caption: str = ""
) -> Image.Image:
    """Cards in rows: the picture, the text below it, the label, and the facts in small print; the caption above."""
    if columns < 1:
        raise ValueError(f"a sheet needs at least one column, got {columns}")
    if not examples:
        raise ValueError("there are no examples to draw: the split is empty")
    cards = [_Card.of(example, labels) for example in examples]
    rows = [cards[start : start + columns] for start in range(0, len(cards), columns)]
    heights = [max(card.height for card in row) for row in rows]
    width = min(columns, len(cards)) * (WIDTH + GAP) + GAP
    heading = _paragraph(caption, TEXT, room=width - 2 * GAP)
    top = GAP + (round(heading.height) + MARGIN if caption else 0)
    sheet = Image.new("RGB", (width, top + sum(heights) + GAP * len(rows)), PAPER)
    _write(ImageDraw.Draw(sheet), heading, (GAP, GAP), INK)
    for row, height in zip(rows, heights, strict=True):
        for place, card in enumerate(row):
            card.draw(sheet, GAP + place * (WIDTH + GAP), top, height)
        top += height + GAP
    return sheet


# -- in words ----------------------------------------------------------------------------------------------------------


def _describe(data: DataSet, example: Example) -> str:
    lines = [f"{example.id}: {_answer(data, example.target)}"]
    lines += [f"  {name}: {_content_line(example.content.get(name))}" for name in data.modalities]
    shown = {name: value for name, value in example.facts.items() if isinstance(value, str | int | float)}
    if shown:
        lines.append(f"  ({', '.join(f'{name}: {value}' for name, value in shown.items())})")
    return "\n".join(lines)


def _answer(data: DataSet, target: Tensor | None) -> str:
    if target is None:
        return "no label"
    if data.head == "score":
        return f"{float(target):g}"
    if target.ndim == 0:
        return data.labels[int(target)]
    if data.head == "tokens":
        return _by_token(target, data.labels)
    best = [(float(target[k]), data.labels[k]) for k in target.nonzero().flatten().tolist()]
    return ", ".join(f"{label} ({worth:g})" for worth, label in sorted(best, reverse=True)) or "none of the labels"


def _by_token(target: Tensor, labels: Sequence[str]) -> str:
    """How many tokens have each answer: a target of the head "tokens"."""
    counts = [int((target == number).sum()) for number in range(len(labels))]
    return ", ".join(f"{count} {label}" for count, label in zip(counts, labels, strict=True) if count)


def _content_line(content: Content | None) -> str:
    if content is None:
        return "missing"
    if isinstance(content, str):
        return content
    if isinstance(content, Picture | Sound):
        return str(content)
    if isinstance(content, Regions):
        return f"{content.picture}, {len(content.boxes)} regions: {', '.join(content.names)}"
    if isinstance(content, Tensor):
        return f"{' x '.join(map(str, content.shape))} numbers"
    choices: Sequence[Any] = content
    return "".join(f"\n    {place}. {_content_line(choice)}" for place, choice in enumerate(choices, start=1))


# -- as cards ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Card:
    """One example, laid out."""

    pictures: list[Image.Image]
    texts: list[Paragraph]
    label: str
    tint: str
    facts: list[Paragraph]

    @classmethod
    def of(cls, example: Example, labels: Sequence[str]) -> _Card:
        pictures, texts = [], []
        for name, content in example.content.items():
            if isinstance(content, Picture):
                pictures.append(fitted(content.open(), PICTURE))
            elif isinstance(content, Regions):
                pictures.append(_with_boxes(content))
            else:
                texts.append(_paragraph(_card_text(name, content), TEXT))
        label, tint = _label(example.target, labels)
        facts = [_paragraph(line, SMALL) for line in _facts(example) if line]
        return cls(pictures=pictures, texts=texts, label=label, tint=tint, facts=facts)

    @property
    def height(self) -> int:
        pictures = sum(picture.height + MARGIN for picture in self.pictures)
        lines = sum(round(each.height) + MARGIN // 2 for each in (*self.texts, *self.facts))
        return MARGIN + pictures + PILL + lines + MARGIN // 2

    def draw(self, sheet: Image.Image, left: int, top: int, height: int) -> None:
        pen = ImageDraw.Draw(sheet)
        pen.rounded_rectangle((left, top, left + WIDTH, top + height), radius=8, fill=CARD, outline=LINE)
        x, y = left + MARGIN, top + MARGIN
        for picture in self.pictures:
            sheet.paste(picture, (left + (WIDTH - picture.width) // 2, y))
            y += picture.height + MARGIN
        for text in self.texts:
            y = _write(pen, text, (x, y), INK)
        font = _font(15)
        pen.rounded_rectangle((x, y, x + font.getlength(self.label) + 18, y + 25), radius=12, fill=self.tint)
        pen.text((x + 9, y + 12), self.label, fill="white", font=font, anchor="lm")
        y += PILL
        for text in self.facts:
            y = _write(pen, text, (x, y), FAINT)


def _paragraph(text: str, size: int, *, room: int = WIDTH - 2 * MARGIN) -> Paragraph:
    """Wrapped to the card's width; what does not fit is cut, visibly."""
    words = words_of(text[:LONGEST])
    # Pillow's own font has no character for an ellipsis.
    return set_words(words, width=room, size=size, most_lines=MOST_LINES, measure=_width, ellipsis="...")


def _write(pen: ImageDraw.ImageDraw, paragraph: Paragraph, place: tuple[int, int], colour: str) -> int:
    """Draw the words; where the next paragraph begins."""
    x, y = place
    for each in paragraph.placed:
        pen.text((x + each.left, y + each.top), each.word, fill=colour, font=_font(int(paragraph.size)))
    return y + round(paragraph.height) + MARGIN // 2


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _width(text: str, size: float) -> float:
    return float(_font(int(size)).getlength(text))


def _with_boxes(regions: Regions) -> Image.Image:
    original = regions.picture.open()
    picture = fitted(original, PICTURE)
    pen, scale = ImageDraw.Draw(picture), picture.width / original.width
    for number, (box, name) in enumerate(zip(regions.boxes, regions.names, strict=True)):
        left, top, right, bottom = (round(edge * scale) for edge in box)
        tint = TINTS[number % len(TINTS)]
        pen.rectangle((min(left, right), min(top, bottom), max(left, right), max(top, bottom)), outline=tint, width=2)
        words = pen.textbbox((left + 4, top + 3), name, font=_font(SMALL))
        pen.rectangle((words[0] - 3, words[1] - 2, words[2] + 3, words[3] + 2), fill=tint)
        pen.text((left + 4, top + 3), name, fill="white", font=_font(SMALL))
    return picture


def _card_text(name: str, content: Any) -> str:
    """The text on a card for a modality that is not a picture."""
    if isinstance(content, str):
        return content if content.strip() else f"({name}: an empty text)"
    if isinstance(content, Sound):
        return f"({name}: a sound of {content.seconds():.1f} seconds, {Path(str(content)).name})"
    if isinstance(content, Tensor):
        shape = " x ".join(map(str, content.shape)) or "1"
        return f"({name}: numbers, {shape})"
    if all(isinstance(choice, str) for choice in content):
        return "\n".join(f"{number}. {choice}" for number, choice in enumerate(content))
    return f"({name}: numbers for each of {len(content)} choices)"


def _label(target: Tensor | None, labels: Sequence[str]) -> tuple[str, str]:
    """The label and its colour; a vector of scores is named by its highest, a number stays one."""
    if target is None:
        return "no label", TINTS[-1]
    if target.is_floating_point() and target.numel() == 1:
        return f"{target.item():.2f}", TINTS[3]
    if target.numel() > 1 and not target.is_floating_point():
        return _by_token(target, labels), TINTS[-1]
    if target.numel() > 1 and not bool((target > 0).any()):
        return "none of the known answers", TINTS[-1]
    number = int(target.argmax() if target.numel() > 1 else target)
    return (labels[number] if 0 <= number < len(labels) else f"answer {number}"), TINTS[number % len(TINTS)]


def _facts(example: Example) -> tuple[str, str]:
    """Two lines: why the label is what it is, empty where that is not known; and the other facts with the id."""
    facts = {name: example.facts[name] for name in SHOWN_FACTS if isinstance(example.facts.get(name), str | int)}
    words = [value if isinstance(value, str) else f"{name} {value}" for name, value in facts.items()]
    return str(example.facts.get("because", "")), " · ".join([*words, example.id])
