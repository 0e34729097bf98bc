"""What a request may bring, and how long it may take to do so: counted while it streams in, whatever it announces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from meq.viz.app.uploads import UploadError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

BODY_SECONDS = 60.0
"""For a whole body to arrive."""


class BodyError(UploadError):
    """A body that is too large, or takes too long."""


class GoneError(Exception):
    """The other end has hung up: there is nobody to answer."""


async def body_parts(
    receive: Receive, *, most: int, announced: int, seconds: float = BODY_SECONDS
) -> AsyncIterator[bytes]:
    """The parts of a body as they come."""
    count, end = 0, asyncio.get_running_loop().time() + seconds
    more = True
    if announced > most:
        raise _too_large(most)
    while more:
        try:
            message = await asyncio.wait_for(receive(), end - asyncio.get_running_loop().time())
        except asyncio.TimeoutError as error:
            raise BodyError(f"The request did not arrive within {seconds:.0f} seconds: try again.", 408) from error
        if message["type"] == "http.disconnect":
            raise GoneError
        part, more = message.get("body", b""), message.get("more_body", False)
        count += len(part)
        if count > most:
            raise _too_large(most)
        yield part


async def whole_body(receive: Receive, *, most: int, announced: int) -> bytes:
    """All of a body."""
    return b"".join([part async for part in body_parts(receive, most=most, announced=announced)])


def replay(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, for who reads it next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return waiting.pop() if waiting else await receive()

    return receiving


def _too_large(most: int) -> BodyError:
    return BodyError(f"The request is larger than the {most / 2**20:.2g} MB that are taken.", 413)
