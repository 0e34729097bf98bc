"""Pictures on their way in: each upload for itself, in memory, until the one who sent it asks what to make of it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

MAX_BYTES = 10 * 2**20
"""Of one picture."""
MAX_BODY = MAX_BYTES + 2**16
"""Of a request with one picture in it."""
KEPT_BYTES = 256 * 2**20
"""Of all pictures that wait together."""
KEPT_SECONDS = 600.0
"""An upload that nobody has asked for by then is forgotten."""
TICKET_BYTES = 24


@dataclass(frozen=True)
class Upload:
    """A file as it was sent."""

    name: str
    data: bytes


class UploadError(ValueError):
    """An upload that is not taken; the message is meant for the person who sent it."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


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
                raise UploadError("Too many pictures are waiting to be looked at: try again in a minute.", 503)
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
        raise UploadError("An upload is a form with one file in it.")
    parser = _InMemory(headers, stream)
    try:
        form = await parser.parse()
    except UploadError:
        raise
    except (MultiPartException, ValueError, KeyError) as error:  # what the parser makes of forms that are none
        raise UploadError("An upload is a form with one file in it, and this one is something else.") from error
    files = [each for each in form.values() if isinstance(each, UploadFile)]
    if len(files) != 1:
        raise UploadError("No picture arrived: upload it again.")
    data = await files[0].read()
    await form.close()
    if len(data) > MAX_BYTES:
        raise UploadError(f"At most {MAX_BYTES // 2**20} MB are taken: scale the picture down.", 413)
    return Upload(_base_name(files[0].filename or ""), data)


class _InMemory(MultiPartParser):
    """Starlette's parser for one file, which would put a large one on disk, and be content with half of it."""

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
            raise UploadError("The picture did not arrive whole: upload it again.")


def _base_name(name: str) -> str:
    """The last part of a path, whichever way its separators lean."""
    return name.replace("\\", "/").rpartition("/")[2] or "picture"
