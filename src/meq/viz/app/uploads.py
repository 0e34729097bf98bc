"""What people send to the page: pictures, which wait in memory until they are used.

Nothing that is uploaded ever lies in a file, and a picture is decoded within limits before anything else sees it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from meq.data.content import PictureBytes
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
from meq.viz.templating import encoded
from meq.viz.text import shortened
from meq.web.bodies import RefusedError

MAX_BYTES = 10 * 2**20
"""Bytes of one picture."""
MAX_BODY = MAX_BYTES + 2**16
"""Bytes of a request with one picture in it."""
KEPT_BYTES = 256 * 2**20
"""Bytes of all pictures that wait together."""
KEPT_SECONDS = 600.0
"""An upload that nobody has asked for by then is forgotten."""
TICKET_BYTES = 24
LONGEST = 2048
"""Pixels of a side; no encoder reads more than a few hundred, and forty people with large photographs need room."""
MAX_NAME = 120
"""Characters of a file's name."""
_LARGE = threading.Lock()
"""Large pictures are unpacked one at a time: each may need hundreds of megabytes until it is scaled down."""


@dataclass(frozen=True)
class Upload:
    """A file as it was sent."""

    name: str
    data: bytes


class Uploads:
    """Uploads by ticket. A ticket is drawn for each, serves once, and cannot be guessed: nobody gets another's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # uploads arrive in the server's thread, and are asked for in others
        self._waiting: dict[str, tuple[float, Upload]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, upload: Upload) -> str:
        """The ticket for it."""
        self.sweep()
        with self._lock:
            held = sum(len(each.data) for _, each in self._waiting.values())
            if held + len(upload.data) > KEPT_BYTES:
                raise RefusedError("Too many pictures are waiting to be looked at: try again in a minute.", 503)
            ticket = secrets.token_urlsafe(TICKET_BYTES)
            self._waiting[ticket] = self._clock(), upload
        return ticket

    def take(self, ticket: str) -> Upload | None:
        """The upload, which is forgotten by that; None if there is none of that ticket, or no longer."""
        self.sweep()
        with self._lock:
            _, upload = self._waiting.pop(ticket, (0.0, None))
        return upload

    def sweep(self) -> None:
        """Forget what has waited too long."""
        with self._lock:
            before = self._clock() - KEPT_SECONDS
            self._waiting = {ticket: each for ticket, each in self._waiting.items() if each[0] > before}


async def read_upload(headers: Headers, stream: AsyncIterator[bytes]) -> Upload:
    """The one file of a form, as it streams in; no more of it than one file is ever held."""
    if not headers.get("content-type", "").startswith("multipart/form-data"):
        raise RefusedError("An upload is a form with one file in it.")
    parser = _MemoryParser(headers, stream)
    try:
        form = await parser.parse()
    except RefusedError:
        raise
    except (MultiPartException, ValueError, KeyError) as error:  # what the parser makes of forms that are none
        raise RefusedError("An upload is a form with one file in it, and this one is something else.") from error
    files = [each for each in form.values() if isinstance(each, UploadFile)]
    if len(files) != 1:
        raise RefusedError("No picture arrived: upload it again.")
    data = await files[0].read()
    await form.close()
    if len(data) > MAX_BYTES:
        raise RefusedError(f"At most {MAX_BYTES // 2**20} MB are taken: scale the picture down.", 413)
    name = (files[0].filename or "").replace("\\", "/").rpartition("/")[2]  # without its folders, of any system
    return Upload(name or "picture", data)


class _MemoryParser(MultiPartParser):
    """Starlette's parser for one file, kept in memory, and an error if the form ends early.

    By itself it would write a large file to disk, and accept half of one.
    """

    spool_max_size = MAX_BODY

    def __init__(self, headers: Headers, stream: AsyncIterator[bytes]) -> None:
        super().__init__(headers, self._to_the_end(stream), max_files=1, max_fields=0)
        self._ended = False

    def on_end(self) -> None:
        self._ended = True

    async def _to_the_end(self, stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for part in stream:
            yield part
        if not self._ended:
            raise RefusedError("The picture did not arrive whole: upload it again.")


class UploadedPicture(PictureBytes):
    """A picture as it was sent. It was decoded once before it was let in, and its whole is never larger than needed."""

    __slots__ = ()

    def open(self) -> Image.Image:
        return _decoded(self.data, self.name)[0]


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
