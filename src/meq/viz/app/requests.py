"""What comes in is judged here, before any of it reaches the model; a refusal says what to do instead."""

from __future__ import annotations

import hashlib
import io
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
from meq.experiments.runs.explain import Explainer
from meq.experiments.runs.explanation import Explanation
from meq.viz.app.uploads import MAX_BYTES, Uploads
from meq.viz.letters import shortened

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
        return _decoded(self.data, self.name).image

    def open_scaled(self, side: int) -> tuple[Image.Image, tuple[int, int]]:
        return open_scaled(self.data, side, name=self.name)  # it was decoded once before it was let in

    def fingerprint(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class _Decoded:
    image: Image.Image
    scaled: bool


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
            f"{name} has {_megabytes(len(data))}; at most {_megabytes(MAX_BYTES)} are taken: scale it down."
        )
    return UploadedPicture(name, _scaled_file(_decoded(data, name)) or data)


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
    """The page shows models of one picture and one text; others get a sentence."""
    kinds, head = explainer.kinds, explainer.run.task.head
    if head == "choices":
        raise ValueError(
            "the explorer shows models of one picture and one text, and this one chooses among several texts: "
            "use meq.experiments.runs.explain for it"
        )
    if sorted(kinds.values()) != ["image", "text"]:
        has = ", ".join(f"{name!r} ({kind})" for name, kind in kinds.items())
        raise ValueError(
            f"the explorer shows models of one picture and one text, and this one was trained on {has}: "
            "use meq.experiments.runs.explain for it"
        )


def _decoded(data: bytes, name: str) -> _Decoded:
    """In RGB, no side longer than `LONGEST`; `meq.data.pictures` says what is decoded at all."""
    try:
        if max(size_of_picture(data, name=name)) <= LONGEST:
            return _Decoded(open_picture(data, name=name), scaled=False)
        with _LARGE:
            return _Decoded(_scaled_down(data, name), scaled=True)
    except TooManyPixelsError as error:
        raise RefusedError(str(error)) from error
    except NoPictureError as error:
        raise RefusedError(f"{name} is not a picture: choose a {_listed(PICTURE_FORMATS)} file.") from error
    except DataError as error:
        raise RefusedError(f"{name} is a damaged picture: save it anew, or choose another.") from error


def _scaled_down(data: bytes, name: str) -> Image.Image:
    """In RGB, scaled while it is read where the format can do that, as JPEG can."""
    image, _ = open_scaled(data, LONGEST // SPARE, name=name)
    image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return image


def _scaled_file(picture: _Decoded) -> bytes | None:
    """A picture that was scaled down, as a file without loss; None where the one that was sent will do."""
    if not picture.scaled:
        return None
    out = io.BytesIO()
    picture.image.save(out, "PNG", compress_level=1)
    return out.getvalue()


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.0f} MB"


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
