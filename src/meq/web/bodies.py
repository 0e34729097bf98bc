"""Bodies of requests, counted while they stream in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import meq.web.needs  # noqa: F401

# isort: split
from starlette.datastructures import Headers

BODY_SECONDS = 60.0
"""Time for a whole body to arrive."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class RefusedError(ValueError):
    """Something that is not let in; the message is meant for the person who sent it, the status for the browser."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class GoneError(Exception):
    """The other end has hung up: there is nobody to answer."""


async def body_parts(
    receive: Receive, *, most: int, announced: int, seconds: float = BODY_SECONDS
) -> AsyncIterator[bytes]:
    """The parts of a body as they come."""
    count, end = 0, asyncio.get_running_loop().time() + seconds
    more = True
    too_large = RefusedError(f"The request is larger than the {most / 2**20:.2g} MB that are taken.", 413)
    if announced > most:
        raise too_large
    while more:
        try:
            message = await asyncio.wait_for(receive(), end - asyncio.get_running_loop().time())
        except TimeoutError as error:
            raise RefusedError(f"The request did not arrive within {seconds:.0f} seconds: try again.", 408) from error
        if message["type"] == "http.disconnect":
            raise GoneError
        part, more = message.get("body", b""), message.get("more_body", False)
        count += len(part)
        if count > most:
            raise too_large
        yield part


async def whole_body(receive: Receive, *, most: int, announced: int) -> bytes:
    """All of a body."""
    return b"".join([part async for part in body_parts(receive, most=most, announced=announced)])


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body again that was read already."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return waiting.pop() if waiting else await receive()

    return receiving


def announced_length(headers: Headers) -> int:
    """The content length of the body; 0 where none is given."""
    said = headers.get("content-length", "0")
    return int(said) if said.isdecimal() else 0
