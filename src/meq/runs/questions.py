"""Examples in JSON, as an endpoint is asked: by modality a text, a picture or a sound in base64, regions, or numbers.

{"photo": "iVBORw0KGgo...", "caption": "a red door", "weather": [3.5, 0.0]}
{"scene": {"picture": "iVBORw0KGgo...", "boxes": [[4, 4, 18, 20]]}, "text": ["Is it a door? Yes.", "Is it a door? No."]}

One object is one example, a list of them a batch. What is null, or not there, is a missing modality. A run that chooses
among answers is given a list of texts, one per choice.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meq.data.content import Picture, PictureBytes, Regions, Sound, SoundBytes
from meq.data.contract import Example, with_tensors
from meq.data.files import BadRowError
from meq.data.findings import DataError
from meq.data.pictures import TooManyPixelsError
from meq.data.table_columns import ModalityColumn, TextColumn, VectorColumn
from meq.errors import shown
from meq.options import nearest
from meq.records import JsonError, parse_json
from meq.runs.load import TrainedRun
from meq.web.bodies import RefusedError
from meq.web.limits import Limits

WRONG, TOO_MUCH = 422, 413
CHOICES = (2, 64)
"""How many choices a question may have, from and to."""
FURTHEST = 1e6
"""Pixels from the corner of a picture that a box may begin or end at; what is outside of the picture is cut."""
SHOWN = 60
"""Characters of somebody's own words in a refusal."""
WRITTEN: Mapping[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "image": {"type": "string", "contentEncoding": "base64", "description": "a PNG, JPEG, WebP, GIF, BMP or TIFF file"},
    "audio": {"type": "string", "contentEncoding": "base64", "description": "a WAV file, PCM or float"},
}
NUMBERS = {"type": "array", "items": {"type": "number"}}
REGIONS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "picture": WRITTEN["image"],
        "boxes": {
            "type": "array",
            "items": {**NUMBERS, "minItems": 4, "maxItems": 4},
            "description": "left, top, right and bottom of each, in pixels of the picture",
        },
        "names": {"type": "array", "items": {"type": "string"}, "description": "what is in each box; may be left out"},
    },
    "required": ["picture", "boxes"],
    "additionalProperties": False,
}


class Questions:
    """Reads what is asked of one run."""

    def __init__(self, run: TrainedRun, limits: Limits) -> None:
        self.limits, self.widths = limits, dict(run.task.widths)
        self.columns = {name: run.task.columns.get(name, (name,)) for name in self.widths}
        self.kinds = {name: run.task.kinds.get(name, "features") for name in self.widths}
        self.chooses = run.task.head == "choices"
        if self.chooses and "text" not in self.kinds.values():
            raise ValueError(
                f"{run.folder} chooses among answers that are no texts: only choices in words can be sent as JSON"
            )
        self._readers = {name: self._reader(name) for name in self.widths}

    def read(self, body: bytes) -> tuple[list[Example], bool]:
        """The examples of a request, and whether it was a list; RefusedError that names example and modality."""
        try:
            asked = parse_json(body)
        except JsonError as error:
            raise RefusedError(f"The request is no JSON: {shown(error)}", 400) from error
        several = isinstance(asked, list)
        found = asked if several else [asked]
        if not found:
            raise RefusedError("The list of examples is empty: send at least one.", WRONG)
        if len(found) > self.limits.max_batch:
            most = f"at most {self.limits.max_batch:,} are taken at once"
            raise RefusedError(f"The request has {len(found):,} examples; {most}: send several requests.", TOO_MUCH)
        names = [f"example {place}" for place in range(1, len(found) + 1)] if several else ["the example"]
        examples = [self._example(name, each) for name, each in zip(names, found, strict=True)]
        if self.chooses:
            self._check_choices(examples)
        return examples, several

    def schema(self) -> dict[str, Any]:
        """What a request looks like, in JSON Schema."""
        example = {
            "type": "object",
            "properties": {name: {"anyOf": [self._written(name), {"type": "null"}]} for name in self.widths},
            "additionalProperties": False,
            "minProperties": 1,
        }
        several = {"type": "array", "items": example, "minItems": 1, "maxItems": self.limits.max_batch}
        return {"anyOf": [example, several]}

    def _written(self, name: str) -> dict[str, Any]:
        width, columns = self.widths[name], self.columns[name]
        if self.kinds[name] == "regions":
            most = {**REGIONS["properties"]["boxes"], "maxItems": self.limits.max_regions}
            return {**REGIONS, "properties": {**REGIONS["properties"], "boxes": most}}
        if self.kinds[name] == "text" and self.chooses:
            several = {"type": "array", "items": WRITTEN["text"], "minItems": CHOICES[0], "maxItems": CHOICES[1]}
            return {"anyOf": [WRITTEN["text"], several], "description": "a text, or one for each choice"}
        if self.kinds[name] != "features":
            return WRITTEN[self.kinds[name]]
        vector = {**NUMBERS, "minItems": width, "maxItems": width}
        words = f"{width} numbers, or a list of such lists" + (f": {', '.join(columns)}" if len(columns) > 1 else "")
        return {"anyOf": [vector, {"type": "array", "items": vector}], "description": words}

    def _reader(self, name: str) -> ModalityColumn | None:
        """What reads a table's column of that kind reads the same of JSON; pictures are in the request itself."""
        kind = {"text": TextColumn, "features": VectorColumn}.get(self.kinds[name])
        return None if kind is None else kind(name, (name,), root=Path(), width=self.widths[name])

    def _example(self, place: str, asked: Any) -> Example:
        if not isinstance(asked, dict):
            known = ", ".join(map(repr, self.widths))
            raise RefusedError(f"{place} is no object: an example has a value for each of {known}.", WRONG)
        for name in asked:
            if name not in self.widths:
                words = f"{place} has {shown(name, SHOWN)!r}, and the run has no such modality"
                raise RefusedError(f"{words}: {nearest(name[:SHOWN], self.widths)}", WRONG)
        content = {name: self._content(place, name, value) for name, value in asked.items()}
        content = {name: value for name, value in content.items() if value is not None}
        if not content:
            some = " or ".join(map(repr, self.widths))
            raise RefusedError(f"{place} holds nothing to answer from: give it {some}.", WRONG)
        return with_tensors(Example(id=place, content=content, target=None))

    def _content(self, place: str, name: str, value: Any) -> Any:
        reader = self._readers[name]
        if reader is None:
            read = {"image": self._picture, "audio": self._sound, "regions": self._regions}[self.kinds[name]]
            return None if value is None else read(f"{place}, {name!r}", value)
        if self.chooses and isinstance(reader, TextColumn) and isinstance(value, list):
            return self._choices(place, name, value)
        if isinstance(reader, TextColumn) and not isinstance(value, str | None):
            raise RefusedError(f"{place}: {name!r} is a {_kind(value)}, and a text is asked for.", WRONG)
        if isinstance(reader, VectorColumn) and not isinstance(value, list | None):
            raise RefusedError(f"{place}: {name!r} is a {_kind(value)}, and a list of numbers is asked for.", WRONG)
        try:
            kept = reader.keep([value])
        except BadRowError as bad:
            raise RefusedError(f"{place}: {shown(str(bad).removeprefix('column '))}", WRONG) from bad
        if kept is None:
            return None
        wrong = reader.wrong(kept)
        if wrong is not None:
            raise RefusedError(f"{place}: {wrong.removeprefix('column ')}", WRONG)
        return reader.content(kept)

    def _choices(self, place: str, name: str, value: list[Any]) -> tuple[str, ...]:
        """One text per choice, each read as a text is."""
        low, high = CHOICES
        if not low <= len(value) <= high:
            raise RefusedError(f"{place}: {name!r} has {len(value):,} choices; from {low} to {high} are taken.", WRONG)
        read = [self._content(place, name, None if isinstance(each, list) else each) for each in value]
        if any(each is None for each in read):
            raise RefusedError(f"{place}: a choice of {name!r} is no text, or an empty one.", WRONG)
        return tuple(read)

    def _check_choices(self, examples: Sequence[Example]) -> None:
        """Every example has as many choices as the others, which are answered together."""
        texts = [name for name, kind in self.kinds.items() if kind == "text"]
        first: dict[str, int] | None = None
        for example in examples:
            counts = {name: len(x) for name in texts if isinstance(x := example.content.get(name), tuple)}
            if not counts:
                some = " or ".join(map(repr, texts))
                raise RefusedError(f"{example.id} has no choices: give {some} a list of texts.", WRONG)
            if len(set(counts.values())) > 1 or counts != (first := first or counts):
                raise RefusedError(
                    f"{example.id} has other choices than the rest of the request: of one request, all have as many, "
                    "in the same modalities.", WRONG,
                )  # fmt: skip

    def _sound(self, called: str, value: Any) -> Sound:
        sound = SoundBytes(called, _bytes(called, value, "sound"))
        try:
            seconds = sound.seconds()
        except DataError as error:
            raise RefusedError(str(error), WRONG) from error
        if seconds > self.limits.max_seconds:
            most = f"at most {self.limits.max_seconds:g} are taken"
            raise RefusedError(f"{called}: {seconds:,.1f} seconds; {most}: cut it.", TOO_MUCH)
        return sound

    def _regions(self, called: str, value: Any) -> Regions:
        if not isinstance(value, dict) or not {"picture", "boxes"} <= set(value) <= set(REGIONS["properties"]):
            words = 'regions are asked for: {"picture": BASE64, "boxes": [[left, top, right, bottom], ...]}'
            raise RefusedError(f'{called}: {words}, and "names" of the boxes where they are known.', WRONG)
        picture, boxes = self._picture(called, value["picture"]), value["boxes"]
        if not isinstance(boxes, list) or not all(map(_is_box, boxes)):
            raise RefusedError(
                f"{called}: a box is a list of four numbers in pixels, left, top, right and bottom, from the upper "
                "left corner; right and bottom are the larger.", WRONG,
            )  # fmt: skip
        if len(boxes) > self.limits.max_regions:
            most = f"at most {self.limits.max_regions:,} are taken"
            raise RefusedError(f"{called}: {len(boxes):,} regions; {most}.", TOO_MUCH)
        names = value.get("names", ["" for _ in boxes])
        if not isinstance(names, list) or len(names) != len(boxes) or not all(isinstance(x, str) for x in names):
            raise RefusedError(f"{called}: the names are a list of texts, one for each of the boxes.", WRONG)
        return Regions(picture=picture, boxes=tuple(map(_box, boxes)), names=tuple(names))

    def _picture(self, called: str, value: Any) -> Picture:
        picture = PictureBytes(called, _bytes(called, value, "picture"))
        try:
            width, height = picture.size()
        except TooManyPixelsError as error:
            raise RefusedError(str(error), TOO_MUCH) from error
        except DataError as error:
            raise RefusedError(str(error), WRONG) from error
        if width * height > self.limits.max_megapixels * 10**6:
            most = f"at most {self.limits.max_megapixels:,} million are taken"
            raise RefusedError(f"{called}: {width:,} x {height:,} pixels; {most}: scale it down.", TOO_MUCH)
        return picture


def _bytes(called: str, value: Any, noun: str) -> bytes:
    """A file that was sent as base64."""
    if not isinstance(value, str):
        raise RefusedError(f"{called}: a {_kind(value)}, and a {noun} in base64 is asked for.", WRONG)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(f"{called}: no base64; send the bytes of the {noun}'s file as base64.", WRONG) from error


def _is_box(box: Any) -> bool:
    if not isinstance(box, list) or len(box) != 4:
        return False
    if not all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < FURTHEST for x in box):
        return False
    return bool(box[0] < box[2] and box[1] < box[3])


def _box(box: Sequence[float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = map(float, box)
    return left, top, right, bottom


def _kind(value: Any) -> str:
    names: Sequence[tuple[type, str]] = ((bool, "truth value"), (str, "text"), (list, "list"), (dict, "object"))
    return next((word for kind, word in names if isinstance(value, kind)), "number")
