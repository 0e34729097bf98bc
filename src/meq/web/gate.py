"""Between the network and an application: checks who asks, under which name and with which password.

Other web sites cannot use what is behind it through the browser of somebody who visits both. A browser lets a site
speak to any address under the site's own name, once that name is made to lead there (DNS rebinding). The name is in the
header Host, the site that asks in the header Origin; no page can forge either.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import stat
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

import meq.web.needs  # noqa: F401

# isort: split
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from meq.web.bodies import Application, GoneError, Message, Receive, RefusedError, Send

THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
FOREIGN = ("cross-site", "same-site")
"""What a browser says of requests that another site, or another port of this machine, has caused."""
NAMED = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
METHODS = ("GET", "HEAD", "POST")
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'"
)
SHORTEST = 8
"""Characters of a password."""
WRONG = 10
"""Wrong passwords from one address within `WINDOW_SECONDS`, after which it is refused for as long."""
WINDOW_SECONDS = 60.0
PAUSE_SECONDS = 0.5
"""Delay of the answer to a wrong one."""
ADDRESSES = 1024
"""Addresses whose wrong passwords are remembered; the oldest is forgotten first."""
FORM = "give USER:PASSWORD, with a password of at least {shortest} characters"
NOT_KEPT = {"cache-control": "no-store"}
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"SAMEORIGIN"),
)


HostName = tuple[str, int | None]
"""A name and, unless any will do, a port."""


def _parsed(text: str) -> HostName | None:
    """From NAME or NAME:PORT; None for anything else."""
    found = NAMED.fullmatch(text.lower())
    return None if found is None else (found["name"], int(found["port"]) if found["port"] else None)


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The names that are answered to."""

    allowed: tuple[HostName, ...] = ()
    """Besides those of this machine and the address that was connected to."""

    @classmethod
    def of(cls, names: Sequence[str]) -> Hosts:
        """As a person lists them: NAME, which allows every port, or NAME:PORT."""
        allowed = []
        for name in names:
            if (found := _parsed(name)) is None:
                raise ValueError(
                    f"{name!r} is not the name of a host: give a name or an address, such as models.example.org or "
                    "192.168.0.7:7860, without http:// and without a path"
                )
            allowed.append(found)
        return cls(allowed=tuple(allowed))

    def knows(self, host: str, server: tuple[str, int | None] | None) -> bool:
        """Is it a name of ours? `server` is the address and port that the request came in at."""
        asked = _parsed(host)
        if asked is None:
            return False
        if self._allows(asked):
            return True
        (name, asked_port), (here, port) = asked, server or ("", None)
        return (asked_port or 80) == port and (name in THIS_MACHINE or _same_address(name, here))

    def is_own(self, origin: str, host: str) -> bool:
        """Is it a page of our own that asks, or one at a name that is allowed?"""
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https"):  # "null" is what a page without a home says
            return False
        asking = _parsed(parts.netloc)
        return asking is not None and (parts.netloc.lower() == host.lower() or self._allows(asking))

    def _allows(self, asked: HostName) -> bool:
        return asked in self.allowed or (asked[0], None) in self.allowed


@dataclass(frozen=True)
class Password:
    """A name and a password, kept as a hash of both."""

    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str) -> Password:
        """From USER:PASSWORD."""
        user, colon, password = text.partition(":")
        if not colon or not user:
            raise ValueError(f"the password has no name before it: {FORM.format(shortest=SHORTEST)}")
        if len(password) < SHORTEST:
            raise ValueError(f"the password is too short: {FORM.format(shortest=SHORTEST)}")
        return cls(hashlib.sha256(text.encode()).digest())

    @classmethod
    def read(cls, path: Path) -> Password:
        """From the first line of a file that nobody else may read."""
        try:
            if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise ValueError(f"{path} holds a password that others may read: chmod 600 {path}")
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a text file: its first line is to hold USER:PASSWORD") from error
        except OSError as error:
            raise ValueError(f"the password cannot be read from {path}: {error.strerror}") from error
        return cls.of(lines[0].strip() if lines else "")

    def opens(self, header: str) -> bool:
        """Does the header Authorization hold it? A wrong one takes as long to check as the right one."""
        scheme, _, said = header.partition(" ")
        try:
            given = base64.b64decode(said.strip(), validate=True) if scheme.lower() == "basic" else b""
        except (binascii.Error, ValueError):
            given = b""
        return hmac.compare_digest(hashlib.sha256(given).digest(), self.digest)


class Attempts:
    """Wrong passwords by address, so that nobody tries thousands."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def too_many(self, address: str) -> bool:
        """Has this address been wrong so often that it has to wait?"""
        times = self._wrong.get(address, deque())
        while times and times[0] <= self._clock() - WINDOW_SECONDS:
            times.popleft()
        return len(times) >= WRONG

    def count(self, address: str) -> None:
        """Remember a wrong password of this address."""
        self._wrong.setdefault(address, deque(maxlen=WRONG)).append(self._clock())
        self._wrong.move_to_end(address)
        while len(self._wrong) > ADDRESSES:
            self._wrong.popitem(last=False)


class Gate:
    """The application that the server runs; the one that answers is behind it, see `pass_on`.

    Without a password, whoever can reach it may use it.
    """

    noun = "page"
    """What is behind it, in its refusals."""
    realm = "meq"
    """What a browser says that the password is for."""
    command = "meq"
    """The command that serves it."""

    def __init__(self, app: Application, *, hosts: Hosts | None = None, password: Password | None = None) -> None:
        self.app, self.hosts, self.password = app, hosts or Hosts(), password
        self.attempts = Attempts()
        self._answering: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._loop = asyncio.get_running_loop()
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._until_closed(scope, receive, _Responder(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    def close(self) -> None:
        """End all answers, from any thread: an open page keeps a connection for as long as it is open."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._answering])

    def knows(self, path: str) -> bool:
        """Is there anything at that path? The others are not passed on."""
        raise NotImplementedError

    async def pass_on(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let the application answer a request that may be answered; RefusedError where something in it may not."""
        raise NotImplementedError

    def refusal(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
        """What is sent instead of an answer."""
        return PlainTextResponse(message, status, {**NOT_KEPT, **(headers or {})})

    async def _until_closed(self, scope: Message, receive: Receive, send: _Responder) -> None:
        task = asyncio.ensure_future(self._answer(scope, receive, send))
        self._answering.add(task)
        try:
            await task
        except asyncio.CancelledError:
            if not self._closed:
                raise
            await send.finish()
        finally:
            self._answering.discard(task)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = self._foreign(scope, headers) or await self._locked(scope, headers)
        if refusal is None and scope["method"] not in METHODS:
            refusal = self.refusal(405, "not this way")
        elif refusal is None and not self.knows(scope["path"]):
            refusal = self.refusal(404, "not here")
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        try:
            await self.pass_on(scope, receive, send)
        except RefusedError as error:
            await self.refusal(error.status, str(error), {"connection": "close"})(scope, receive, send)
        except GoneError:
            return

    def _foreign(self, scope: Message, headers: Headers) -> Response | None:
        """A refusal of requests under a name that is not ours, or from somebody else's page."""
        names = headers.getlist("host")
        if len(names) != 1 or not self.hosts.knows(names[0], scope.get("server")):
            advice = f"{self.command} --allow-host NAME (or NAME:PORT)"
            return self.refusal(421, f"This {self.noun} does not answer to that name. If it is to: {advice}.")
        origins = headers.getlist("origin")
        foreign = any(not self.hosts.is_own(origin, names[0]) for origin in origins)
        if foreign or (headers.get("sec-fetch-site") in FOREIGN and scope["path"] != "/"):
            return self.refusal(403, "Other pages may not use this one.")
        return None

    async def _locked(self, scope: Message, headers: Headers) -> Response | None:
        """A refusal unless the password was given; after many wrong ones, even of the right one."""
        if self.password is None:
            return None
        address = str((scope.get("client") or ("",))[0])
        if self.attempts.too_many(address):
            return self.refusal(429, "Too many wrong passwords: wait.", {"retry-after": f"{WINDOW_SECONDS:.0f}"})
        given = headers.get("authorization")
        if given is not None and self.password.opens(given):
            return None
        if given is not None:
            self.attempts.count(address)
            await asyncio.sleep(PAUSE_SECONDS)
        asks = {"www-authenticate": f'Basic realm="{self.realm}", charset="UTF-8"'}
        return self.refusal(401, f"This {self.noun} needs a name and a password.", asks)


class _Responder:
    """Sends answers, with our headers in every one."""

    def __init__(self, send: Send) -> None:
        self._send, self._open = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
            self._open = True
        elif not message.get("more_body", False):
            self._open = False
        await self._send(message)

    async def finish(self) -> None:
        """The end of an answer that was begun."""
        if self._open:
            await self({"type": "http.response.body", "body": b""})


def _same_address(name: str, here: str) -> bool:
    """Whether a name is the address that was connected to, which no DNS entry can change."""
    try:
        one, other = (
            found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
            for found in map(ip_address, (name.strip("[]"), here))
        )
    except ValueError:
        return False
    return one == other
