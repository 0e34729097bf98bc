"""A sheet of examples: what a data set asks, to be understood at a glance."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from meq.data.content import Picture, Regions, SoundFile
from meq.data.contract import Example

WIDTH, PICTURE, MARGIN, GAP = 300, 276, 12, 20
PAPER, CARD, INK, FAINT, LINE = "#f4f2ee", "#ffffff", "#22252a", "#777c85", "#dcd9d2"
TINTS = ("#2f7d4f", "#8a6d1f", "#b23a3a", "#2f5f9e", "#6f4a9e", "#3a7f86", "#a0522d", "#555b66")
"""A label's colour, by its place among the labels."""
MOST_LINES, LONGEST = 6, 2000
"""Lines of a text, and letters looked at: a page of text is not drawn."""
SHOWN_FACTS = ("kind", "hops", "question_type", "answer_type", "class")
"""Facts that are worth a line; others are for programs."""


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
    heading = _lines(caption, 16, room=width - 2 * GAP) if caption else []
    top = GAP + len(heading) * _line_height("text") + (MARGIN if heading else 0)
    sheet = Image.new("RGB", (width, top + sum(heights) + GAP * len(rows)), PAPER)
    _write(ImageDraw.Draw(sheet), "text", heading, (GAP, GAP))
    for row, height in zip(rows, heights, strict=True):
        for place, card in enumerate(row):
            card.draw(sheet, GAP + place * (WIDTH + GAP), top, height)
        top += height + GAP
    return sheet


@dataclass(frozen=True, kw_only=True)
class _Card:
    """One example, laid out."""

    pictures: list[Image.Image]
    blocks: list[tuple[str, list[str]]]
    """Style and lines."""
    label: str
    tint: str

    @classmethod
    def of(cls, example: Example, labels: Sequence[str]) -> _Card:
        pictures, blocks = [], []
        for name, content in example.content.items():
            if isinstance(content, Picture):
                pictures.append(_fitted(content.open()))
            elif isinstance(content, Regions):
                pictures.append(_with_boxes(content))
            else:
                blocks.append(("text", _lines(_in_words(name, content), 16)))
        blocks += [("small", _lines(line, 12)) for line in _facts(example) if line]
        label, tint = _label(example.target, labels)
        return cls(pictures=pictures, blocks=blocks, label=label, tint=tint)

    @property
    def height(self) -> int:
        pictures = sum(picture.height + MARGIN for picture in self.pictures)
        lines = sum(_line_height(style) * len(lines) + 6 for style, lines in self.blocks)
        return MARGIN + pictures + 34 + lines + MARGIN // 2

    def draw(self, sheet: Image.Image, left: int, top: int, height: int) -> None:
        pen = ImageDraw.Draw(sheet)
        pen.rounded_rectangle((left, top, left + WIDTH, top + height), radius=8, fill=CARD, outline=LINE)
        y = top + MARGIN
        for picture in self.pictures:
            sheet.paste(picture, (left + (WIDTH - picture.width) // 2, y))
            y += picture.height + MARGIN
        x = left + MARGIN
        for style, lines in self.blocks[: self._texts]:
            y = _write(pen, style, lines, (x, y))
        font = _font(15)
        pen.rounded_rectangle((x, y, x + font.getlength(self.label) + 18, y + 25), radius=12, fill=self.tint)
        pen.text((x + 9, y + 12), self.label, fill="white", font=font, anchor="lm")
        y += 34
        for style, lines in self.blocks[self._texts :]:
            y = _write(pen, style, lines, (x, y))

    @property
    def _texts(self) -> int:
        return sum(style == "text" for style, _ in self.blocks)


def _write(pen: ImageDraw.ImageDraw, style: str, lines: list[str], place: tuple[int, int]) -> int:
    """Draw the lines; where the next ones begin."""
    x, y = place
    for line in lines:
        pen.text((x, y), line, fill=INK if style == "text" else FAINT, font=_font(16 if style == "text" else 12))
        y += _line_height(style)
    return y + 6


def _line_height(style: str) -> int:
    return 21 if style == "text" else 16


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _fitted(picture: Image.Image) -> Image.Image:
    """As wide as a card; small pictures keep their pixels sharp, tall ones are kept within a square."""
    scale = min(PICTURE / picture.width, PICTURE / picture.height)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS)


def _with_boxes(regions: Regions) -> Image.Image:
    original = regions.picture.open()
    picture = _fitted(original)
    pen, scale = ImageDraw.Draw(picture), picture.width / original.width
    for number, (box, name) in enumerate(zip(regions.boxes, regions.names, strict=True)):
        left, top, right, bottom = (round(edge * scale) for edge in box)
        tint = TINTS[number % len(TINTS)]
        pen.rectangle((min(left, right), min(top, bottom), max(left, right), max(top, bottom)), outline=tint, width=2)
        words = pen.textbbox((left + 4, top + 3), name, font=_font(12))
        pen.rectangle((words[0] - 3, words[1] - 2, words[2] + 3, words[3] + 2), fill=tint)
        pen.text((left + 4, top + 3), name, fill="white", font=_font(12))
    return picture


def _in_words(name: str, content: Any) -> str:
    """What stands for a modality that is not a picture."""
    if isinstance(content, str):
        return content if content.strip() else f"({name}: an empty text)"
    if isinstance(content, SoundFile):
        return f"({name}: a sound of {content.seconds():.1f} seconds, {content.path.name})"
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
    if target.numel() > 1 and not bool((target > 0).any()):
        return "none of the known answers", TINTS[-1]
    number = int(target.argmax() if target.numel() > 1 else target)
    return (labels[number] if 0 <= number < len(labels) else f"answer {number}"), TINTS[number % len(TINTS)]


def _facts(example: Example) -> tuple[str, str]:
    """Why the label is what it is, where that is known; and the rest on one line."""
    facts = {name: example.facts[name] for name in SHOWN_FACTS if isinstance(example.facts.get(name), str | int)}
    words = [value if isinstance(value, str) else f"{name} {value}" for name, value in facts.items()]
    return str(example.facts.get("because", "")), " · ".join([*words, example.id])


def _lines(text: str, size: int, *, room: int = WIDTH - 2 * MARGIN) -> list[str]:
    """Wrapped to the card's width; what does not fit is cut, visibly."""
    font = _font(size)
    lines: list[str] = []
    for paragraph in text[:LONGEST].splitlines() or [""]:
        lines += _wrapped(paragraph, font, room)
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], _cut(lines[MOST_LINES - 1] + " ...", font, room)]
    return lines


def _wrapped(paragraph: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: int) -> list[str]:
    lines, line = [], ""
    for word in paragraph.split():
        word = _cut(word, font, room)
        longer = f"{line} {word}".strip()
        if font.getlength(longer) <= room:
            line = longer
            continue
        if line:
            lines.append(line)
        line = word
    return [*lines, line]


def _cut(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: int) -> str:
    """As much of a text as there is room for."""
    text = text[:room]  # no letter is narrower than a pixel, and measuring a very long word is slow
    if font.getlength(text) <= room:
        return text
    fits = (
        bisect_right(range(len(text)), float(room), key=lambda count: float(font.getlength(text[:count] + "..."))) - 1
    )
    return text[: max(0, fits)] + "..."
