"""What comes in is judged here, before any of it reaches the model; a refusal says what to do instead."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from meq.data.content import Picture, PictureFile
from meq.data.findings import DataError
from meq.data.pictures import PICTURE_FORMATS, NoPictureError, TooManyPixelsError, open_picture, open_scaled
from meq.experiments.runs.explain import Explainer
from meq.experiments.runs.explanation import Explanation

MAX_BYTES = 10 * 2**20
MAX_CHARACTERS = 4000
"""More than any text encoder here reads; what is longer does not even reach it."""
ENDING = 40
"""Characters of a long text that are quoted, to show where it was cut."""


class RefusedError(ValueError):
    """Something that is not let in; the message is meant for the person who sent it."""


@dataclass(frozen=True, slots=True)
class UploadedPicture(Picture):
    """A picture as it was sent: kept as the bytes of its file, in memory only."""

    name: str
    data: bytes

    def open(self) -> Image.Image:
        return _decoded(self.data, self.name)

    def open_scaled(self, side: int) -> tuple[Image.Image, tuple[int, int]]:
        return open_scaled(self.data, side, name=self.name)  # it was decoded once before it was let in

    def fingerprint(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def __str__(self) -> str:
        return self.name


def admit_upload(path: Path, folder: Path) -> UploadedPicture:
    """The picture that was uploaded to `path` below `folder`; the file is gone afterwards, whatever came of it."""
    try:
        checked = PictureFile(path, folder).checked_path()
    except DataError as error:  # its message names our folder, which is nobody's business
        raise RefusedError(f"{path.name} was not uploaded here: upload it again.") from error
    if not checked.is_file():
        raise RefusedError(f"{path.name} did not arrive whole: upload it again.")
    try:
        size = checked.stat().st_size
        if size > MAX_BYTES:
            raise RefusedError(
                f"{path.name} has {_megabytes(size)}; at most {_megabytes(MAX_BYTES)} are taken: scale it down."
            )
        data = checked.read_bytes()
    except FileNotFoundError as error:
        raise RefusedError(f"{path.name} did not arrive whole: upload it again.") from error
    finally:
        _remove(checked, folder)
    return admit_picture(data, path.name)


def admit_picture(data: bytes, name: str) -> UploadedPicture:
    """The picture, if it is one, and can be decoded within the limits of `meq.data.content`."""
    if not data:
        raise RefusedError(f"{name} is empty: choose another file.")
    _decoded(data, name)
    return UploadedPicture(name, data)


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


def _decoded(data: bytes, name: str) -> Image.Image:
    """In RGB; `meq.data.pictures` says what is decoded at all."""
    try:
        return open_picture(data, name=name)
    except TooManyPixelsError as error:
        raise RefusedError(str(error)) from error
    except NoPictureError as error:
        raise RefusedError(f"{name} is not a picture: choose a {_listed(PICTURE_FORMATS)} file.") from error
    except DataError as error:
        raise RefusedError(f"{name} is a damaged picture: save it anew, or choose another.") from error


def _remove(path: Path, folder: Path) -> None:
    path.unlink(missing_ok=True)
    if path.parent != folder and not any(path.parent.iterdir()):
        path.parent.rmdir()


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.0f} MB"


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
