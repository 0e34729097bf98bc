"""Examples in JSON, as an endpoint is asked: by modality a text, a picture in base64, or numbers.

{"photo": "iVBORw0KGgo...", "caption": "a red door", "weather": [3.5, 0.0]}

One object is one example, a list of them a batch. What is null, or not there, is a missing modality.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meq.data.content import Picture, PictureBytes
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
READ = ("image", "text", "features")
"""Kinds of content that can be written in JSON."""
SHOWN = 60
"""Characters of somebody's own words in a refusal."""
WRITTEN: Mapping[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "image": {"type": "string", "contentEncoding": "base64", "description": "a PNG, JPEG, WebP, GIF, BMP or TIFF file"},
}
NUMBERS = {"type": "array", "items": {"type": "number"}}


class Questions:
    """Reads what is asked of one run."""

    def __init__(self, run: TrainedRun, limits: Limits) -> None:
        if run.task.head == "choices":
            raise ValueError(f"{run.folder} answers which of several choices is right: those cannot be served yet")
        self.limits, self.widths = limits, dict(run.task.widths)
        self.columns = {name: run.task.columns.get(name, (name,)) for name in self.widths}
        self.kinds = {name: run.task.kinds.get(name, "features") for name in self.widths}
        unread = [f"{name!r} ({kind})" for name, kind in self.kinds.items() if kind not in READ]
        if unread:
            raise ValueError(f"{', '.join(unread)} cannot be sent as JSON: pictures, texts and numbers can")
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
        return [self._example(name, each) for name, each in zip(names, found, strict=True)], several

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
            return None if value is None else self._picture(f"{place}, {name!r}", value)
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

    def _picture(self, called: str, value: Any) -> Picture:
        if not isinstance(value, str):
            raise RefusedError(f"{called}: a {_kind(value)}, and a picture in base64 is asked for.", WRONG)
        try:
            picture = PictureBytes(called, base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError) as error:
            raise RefusedError(
                f"{called}: no base64; send the bytes of the picture's file as base64.", WRONG
            ) from error
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


def _kind(value: Any) -> str:
    names: Sequence[tuple[type, str]] = ((bool, "truth value"), (str, "text"), (list, "list"), (dict, "object"))
    return next((word for kind, word in names if isinstance(value, kind)), "number")
