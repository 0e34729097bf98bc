"""People and things of a VCR picture: their names in texts, and the boxes they stand in."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meq.data.content import PictureFile
from meq.data.findings import DataError, Findings
from meq.data.jsonl import BadRowError, described, read_json, whole_number

NAMES = (
    *("Casey", "Riley", "Jessie", "Jackie", "Avery", "Jaime", "Peyton"),
    *("Kerry", "Jody", "Kendall", "Skyler", "Frankie", "Pat", "Quinn"),
)
"""In use for both men and women: a model is not to be told who is which."""

Box = tuple[float, float, float, float]
_CLINGS = re.compile(r"[,.?!;:)]|'\w|n't$")
"""How a token starts that has no space before it."""


def names_of(objects: object) -> tuple[str, ...]:
    """What each object is called: the first person Casey, the second Riley, ..., a thing by its class."""
    if not isinstance(objects, list) or not all(isinstance(each, str) and each.strip() for each in objects):
        raise BadRowError("wrong type", f"'objects' must be a list of class names, it is {described(objects)}")
    names, people = [], 0
    for each in objects:
        names.append(person(people) if each == "person" else each)
        people += each == "person"
    return tuple(names)


def person(place: int) -> str:
    """The name of the n-th person, from 0; a crowd that outnumbers the names is numbered: Casey 2."""
    turn, name = divmod(place, len(NAMES))
    return NAMES[name] if turn == 0 else f"{NAMES[name]} {turn + 1}"


def sentence(tokens: object, names: Sequence[str], key: str) -> str:
    """The text of a list of tokens, in which a list of indices stands for the objects of those names."""
    if not isinstance(tokens, list):
        raise BadRowError("wrong type", f"{key!r} must be a list of tokens, it is {described(tokens)}")
    text = ""
    for token in tokens:
        word = token if isinstance(token, str) else _called(token, names, key)
        text += word if _CLINGS.match(word) else f" {word}"
    if not text.strip():
        raise BadRowError("empty text", f"{key!r} is empty")
    return text.strip()


def _called(indices: object, names: Sequence[str], key: str) -> str:
    """Casey; Casey and Riley; Casey, Riley and Jessie."""
    if not isinstance(indices, list) or not indices or not all(whole_number(index) for index in indices):
        raise BadRowError(
            "wrong type", f"{key!r}: a token must be a text or a list of object indices: {described(indices)}"
        )
    outside = [index for index in indices if not 0 <= index < len(names)]
    if outside:
        raise BadRowError(
            "wrong object", f"{key!r} names the object {outside[0]}, the picture has {len(names)}, from 0"
        )
    *others, last = (names[index] for index in indices)
    return f"{', '.join(others)} and {last}" if others else last


class Scenes:
    """The metadata files of the pictures, each read when its example is asked for.

    A box that reaches beyond the picture is clipped. One that is empty after that is reported, and so is a file that
    cannot be used: an error, or, where bad rows are skipped, counted once and the box, or all of them, left out.
    """

    def __init__(self, folder: Path, root: Path, findings: Findings) -> None:
        self.folder, self.root, self.findings = folder, root, findings
        self._reported: set[tuple[str, str]] = set()

    def regions(self, name: str, objects: Sequence[str]) -> tuple[tuple[Box, ...], tuple[str, ...]] | None:
        """Boxes in pixels and what is in each of them; None if the file cannot be used."""
        try:
            boxes = self._boxes(name, len(objects))
        except DataError as error:
            self._report("broken metadata", str(error).removeprefix(f"{self.folder / name}: "), name)
            return None
        kept = []
        for place, (box, called) in enumerate(zip(boxes, objects, strict=True)):
            if box[0] < box[2] and box[1] < box[3]:
                kept.append((box, called))
            else:
                self._report("empty box", f"boxes[{place}], of {called!r}, has no area within the picture", name)
        return tuple(box for box, _ in kept), tuple(called for _, called in kept)

    def _boxes(self, name: str, count: int) -> list[Box]:
        """The boxes of the file, clipped to the picture."""
        file = PictureFile(self.folder / name, self.root).checked_path()  # no symlink may leave the root
        metadata = read_json(file)
        width, height = _size(metadata, file)
        boxes = metadata.get("boxes")
        if not isinstance(boxes, list) or len(boxes) != count:
            found = f"{len(boxes)}" if isinstance(boxes, list) else described(boxes)
            raise DataError(f"{file}: 'boxes' must be a list of {count}, one per object of the record, it is {found}")
        corners = (_corners(box, place, file) for place, box in enumerate(boxes))
        return [(max(a, 0.0), max(b, 0.0), min(c, width), min(d, height)) for a, b, c, d in corners]

    def _report(self, kind: str, message: str, name: str) -> None:
        if (name, message) not in self._reported:
            self.findings.report(kind, message, file=self.folder / name)
            self._reported.add((name, message))


def _size(metadata: Any, file: Path) -> tuple[float, float]:
    if not isinstance(metadata, dict):
        raise DataError(f"{file}: must be an object with boxes, width and height, it is {described(metadata)}")
    width, height = _finite(metadata.get("width")), _finite(metadata.get("height"))
    if width is None or height is None or min(width, height) <= 0:
        raise DataError(f"{file}: 'width' and 'height' must be positive numbers")
    return width, height


def _corners(box: Any, place: int, file: Path) -> Box:
    numbers = [_finite(each) for each in box[:4]] if isinstance(box, list) else []
    if len(numbers) != 4 or None in numbers:
        raise DataError(f"{file}: boxes[{place}] must be four finite numbers, and a score if any: {described(box)}")
    left, top, right, bottom = (each for each in numbers if each is not None)
    return left, top, right, bottom


def _finite(value: object) -> float | None:
    """The number, or None for anything that is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e9:
        return None
    return float(value) if math.isfinite(value) else None
