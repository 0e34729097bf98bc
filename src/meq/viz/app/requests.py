"""Pictures and captions are checked here before they reach the model; a refusal says what to do instead."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from typing import Any

from PIL import Image

from meq.data.content import Picture
from meq.data.findings import DataError
from meq.data.pictures import (
    PICTURE_FORMATS,
    SPARE,
    NoPictureError,
    TooManyPixelsError,
    open_picture,
    open_scaled,
    size_of_picture,
)
from meq.runs.explain import Explainer
from meq.runs.explanation import Explanation
from meq.viz.app.uploads import MAX_BYTES, Uploads
from meq.viz.templating import encoded
from meq.viz.text import shortened

MAX_CHARACTERS = 4000
"""More than any text encoder here reads; what is longer does not even reach it."""
ENDING = 40
"""Characters of a long text that are quoted, to show where it was cut."""
LONGEST = 2048
"""Pixels of a side; no encoder reads more than a few hundred, and forty people with large photographs need room."""
MAX_NAME = 120
"""Characters of a file's name."""
_LARGE = threading.Lock()
"""Large pictures are unpacked one at a time: each may need hundreds of megabytes until it is scaled down."""


class RefusedError(ValueError):
    """Something that is not let in; the message is meant for the person who sent it."""


@dataclass(frozen=True, slots=True)
class UploadedPicture(Picture):
    """A picture as it was sent: kept as the bytes of its file, in memory only."""

    name: str
    data: bytes

    def open(self) -> Image.Image:
        return _decoded(self.data, self.name)[0]

    def open_scaled(self, side: int) -> tuple[Image.Image, tuple[int, int]]:
        return open_scaled(self.data, side, name=self.name)  # it was decoded once before it was let in

    def fingerprint(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def __str__(self) -> str:
        return self.name


def admit_upload(uploads: Uploads, ticket: Any) -> UploadedPicture:
    """The picture that was uploaded for that ticket, which serves no second time, whatever comes of it."""
    upload = uploads.take(ticket) if isinstance(ticket, str) else None
    if upload is None:
        raise RefusedError("The picture did not arrive, or waited too long: upload it again.")
    return admit_picture(upload.data, shortened(upload.name, MAX_NAME))


def admit_picture(data: bytes, name: str) -> UploadedPicture:
    """The picture, if it is one, and can be decoded within the limits of `meq.data.content`."""
    if not data:
        raise RefusedError(f"{name} is empty: choose another file.")
    if len(data) > MAX_BYTES:
        raise RefusedError(
            f"{name} has {len(data) / 2**20:.0f} MB; at most {MAX_BYTES / 2**20:.0f} MB are taken: scale it down."
        )
    image, scaled = _decoded(data, name)
    return UploadedPicture(name, encoded(image, "PNG", compress_level=1) if scaled else data)


def checked_caption(text: str | None, what: str = "caption") -> str:
    """The text without the space around it, if there is any and it is not absurdly long."""
    caption = (text or "").strip()
    if not caption:
        raise RefusedError(f"The {what} is empty: type a sentence about the picture.")
    if len(caption) > MAX_CHARACTERS:
        raise RefusedError(
            f"The {what} has {len(caption):,} characters, more than the {MAX_CHARACTERS:,} that are taken: shorten it."
        )
    try:
        caption.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"The {what} holds half a character that cannot be written: type it again.") from error
    return caption


def check_read_whole(explanation: Explanation, what: str = "caption") -> None:
    """A refusal if the encoder did not read all of the text, or found no word in it."""
    if not explanation.texts:
        raise RefusedError(f"The {what} has no word that the model can read: type a sentence about the picture.")
    (view,) = explanation.texts
    if not view.truncated:
        return
    assert view.spans is not None
    text, end = str(view.content), int(view.spans.max())
    begin = max(0, end - ENDING)
    quoted = ("…" if begin else "") + text[begin:end]
    raise RefusedError(
        f"The {what} is longer than the model reads: it would see {len(view.spans)} tokens, up to “{quoted}”, and "
        f"nothing of the {len(text) - end:,} characters after that. Shorten it."
    )


def check_showable(explainer: Explainer) -> None:
    """An error for a model that is not one of one picture and one text, which is what the page shows."""
    kinds = explainer.kinds
    if explainer.run.task.head == "choices":
        has = "chooses among several texts"
    elif sorted(kinds.values()) != ["image", "text"]:
        has = "was trained on " + ", ".join(f"{name!r} ({kind})" for name, kind in kinds.items())
    else:
        return
    raise ValueError(
        f"the explorer shows models of one picture and one text, and this one {has}: use meq.runs.explain for it"
    )


def _decoded(data: bytes, name: str) -> tuple[Image.Image, bool]:
    """The picture in RGB, with no side longer than `LONGEST`, and whether it was scaled down.

    `meq.data.pictures` says what is decoded at all. A large picture is scaled while it is read where the format can do
    that, as JPEG can.
    """
    try:
        if max(size_of_picture(data, name=name)) <= LONGEST:
            return open_picture(data, name=name), False
        with _LARGE:
            image, _ = open_scaled(data, LONGEST // SPARE, name=name)
            image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS, reducing_gap=2.0)
            return image, True
    except TooManyPixelsError as error:
        raise RefusedError(str(error)) from error
    except NoPictureError as error:
        formats = f"{', '.join(PICTURE_FORMATS[:-1])} or {PICTURE_FORMATS[-1]}"
        raise RefusedError(f"{name} is not a picture: choose a {formats} file.") from error
    except DataError as error:
        raise RefusedError(f"{name} is a damaged picture: save it anew, or choose another.") from error
