"""Between the network and Gradio: checks who asks, under which name, with which password, for what, and how much is
sent. Only what the page itself asks for gets through, and nothing that is uploaded is written to a file.

Other web sites cannot use the page through the browser of somebody who visits both. A browser lets a site speak to any
address under the site's own name, once that name is made to lead there (DNS rebinding). The name is in the header Host,
the site that asks in the header Origin; no page can forge either.
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

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response

from meq.viz.app.uploads import (
    KEPT_SECONDS,
    MAX_BODY,
    Application,
    GoneError,
    Message,
    Receive,
    RefusedError,
    Send,
    Uploads,
    body_parts,
    read_upload,
    replay,
    whole_body,
)

THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
FOREIGN = ("cross-site", "same-site")
"""What a browser says of requests that another site, or another port of this machine, has caused."""
NAMED = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
PAGES = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
FOLDERS = ("/assets/", "/static/", "/svelte/")
UPLOAD, PROGRESS, JOIN = "/gradio_api/upload", "/gradio_api/upload_progress", "/gradio_api/queue/join"
CALLS = (UPLOAD, PROGRESS, JOIN, *(f"/gradio_api/{name}" for name in ("queue/data", "cancel", "theme.css", "reset")))
"""What the page uses of Gradio's interface. The rest serves files, fetches addresses, records, edits: it is closed."""
HEARTBEAT = re.compile(r"/gradio_api/heartbeat/\w+")
TRICKS = re.compile(r"\.\.|//|[\\%\x00-\x1f\x7f]")
"""Ways to leave a folder. The path is decoded by now: a percent sign means that it was encoded twice."""
UPLOAD_NAME = re.compile(rb"(?:^|&)upload_id=(\w{1,64})(?:&|$)", re.ASCII)
METHODS = ("GET", "HEAD", "POST")
MAX_QUESTION = 2**18
"""Bytes of a request that is no upload: two captions, however they are written, fit in it."""
PROGRESS_SECONDS = 60.0
FULL = "Too many people are waiting for this page: try again in a minute."
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
    """The names that this page answers to."""

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
        """Is it this very page that asks, or one at a name that is allowed?"""
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
            raise ValueError(f"the password of the page has no name before it: {FORM.format(shortest=SHORTEST)}")
        if len(password) < SHORTEST:
            raise ValueError(f"the password of the page is too short: {FORM.format(shortest=SHORTEST)}")
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


class Guard:
    """The application that the server runs; Gradio's is behind it.

    Without a password, whoever can reach the page may use it.
    """

    def __init__(
        self, app: Application, uploads: Uploads, *, hosts: Hosts | None = None, password: Password | None = None
    ) -> None:
        self.app, self.uploads, self.hosts, self.password = app, uploads, hosts or Hosts(), password
        self.attempts = Attempts()
        self._arrived: deque[str] = deque(maxlen=256)
        """Names that the page gave to uploads which are over."""
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
        refusal = refuse_sender(scope, headers, self.hosts) or await self._locked(scope, headers)
        if refusal is None and scope["method"] not in METHODS:
            refusal = _refusal(405, "not this way")
        elif refusal is None and not is_needed(scope["path"]):
            refusal = _refusal(404, "not here")
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        try:
            await self._serve(_without_forwarding(scope, headers, self.hosts), receive, send)
        except RefusedError as error:
            await _refusal(error.status, str(error), {"connection": "close"})(scope, receive, send)
        except GoneError:
            return

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        path, announced = scope["path"].rstrip("/"), _announced(Headers(scope=scope))
        if path == UPLOAD:
            await self._take_upload(scope, receive, send)
        elif path == PROGRESS:
            await self._tell_progress(scope, receive, send)
        elif scope["method"] == "POST":
            body = await whole_body(receive, most=MAX_QUESTION, announced=announced)
            await self.app(scope, replay(body, receive), _when_full(scope, receive, send) if path == JOIN else send)
        else:
            await self.app(scope, receive, send)

    async def _locked(self, scope: Message, headers: Headers) -> Response | None:
        """A refusal unless the password was given; after many wrong ones, even of the right one."""
        if self.password is None:
            return None
        address = str((scope.get("client") or ("",))[0])
        if self.attempts.too_many(address):
            return _refusal(429, "Too many wrong passwords: wait.", {"retry-after": f"{WINDOW_SECONDS:.0f}"})
        given = headers.get("authorization")
        if given is not None and self.password.opens(given):
            return None
        if given is not None:
            self.attempts.count(address)
            await asyncio.sleep(PAUSE_SECONDS)
        asks = {"www-authenticate": 'Basic realm="Equilibrium Explorer", charset="UTF-8"'}
        return _refusal(401, "This page needs a name and a password.", asks)

    async def _take_upload(self, scope: Message, receive: Receive, send: Send) -> None:
        """Keep the picture, and answer with a ticket for it, which names no place."""
        headers = Headers(scope=scope)
        name = _upload_name(scope)
        try:
            parts = body_parts(receive, most=MAX_BODY, announced=_announced(headers))
            ticket = self.uploads.keep(await read_upload(headers, parts))
        finally:
            self._arrived.append(name)
        asyncio.get_running_loop().call_later(KEPT_SECONDS + 1, self.uploads.sweep)
        await JSONResponse([ticket], headers=NOT_KEPT)(scope, receive, send)

    async def _tell_progress(self, scope: Message, receive: Receive, send: Send) -> None:
        """Tell the page when its upload is over; how far it is, the browser knows."""
        name, loop = _upload_name(scope), asyncio.get_running_loop()
        end = loop.time() + PROGRESS_SECONDS
        while name not in self._arrived and loop.time() < end:
            await asyncio.sleep(0.05)
        done = Response('data: {"msg": "done"}\n\n', media_type="text/event-stream", headers=NOT_KEPT)
        await done(scope, receive, send)


def refuse_sender(scope: Message, headers: Headers, hosts: Hosts) -> Response | None:
    """A refusal of requests under a name that is not ours, or from somebody else's page."""
    names = headers.getlist("host")
    if len(names) != 1 or not hosts.knows(names[0], scope.get("server")):
        return _refusal(
            421, "This page does not answer to that name. If it is to: meq app --allow-host NAME (or NAME:PORT)."
        )
    origins = headers.getlist("origin")
    foreign = any(not hosts.is_own(origin, names[0]) for origin in origins)
    if foreign or (headers.get("sec-fetch-site") in FOREIGN and scope["path"] != "/"):
        return _refusal(403, "Other pages may not use this one.")
    return None


def is_needed(path: str) -> bool:
    """Does the page ask for it?"""
    if TRICKS.search(path):
        return False
    if path in PAGES or path.startswith(FOLDERS) or HEARTBEAT.fullmatch(path):
        return True
    return path.rstrip("/") in CALLS


def _without_forwarding(scope: Message, headers: Headers, hosts: Hosts) -> Message:
    """The request without the headers of a proxy, which Gradio believes, unless they name an allowed host."""
    forwarded = headers.get("x-forwarded-host")
    if forwarded is None or hosts.knows(forwarded, None):
        return scope
    kept = [(name, value) for name, value in scope["headers"] if not name.lower().startswith(b"x-forwarded-")]
    return {**scope, "headers": kept}


def _announced(headers: Headers) -> int:
    """The content length of the body; 0 where none is given."""
    said = headers.get("content-length", "0")
    return int(said) if said.isdecimal() else 0


def _upload_name(scope: Message) -> str:
    """What the page calls its upload, to ask how far it is."""
    found = UPLOAD_NAME.search(scope.get("query_string", b""))
    return found[1].decode() if found else ""


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


def _when_full(scope: Message, receive: Receive, send: Send) -> Send:
    """Where the queue is full, answers in a sentence instead of Gradio's numbers."""
    full = False

    async def sending(message: Message) -> None:
        nonlocal full
        if message["type"] == "http.response.start" and message["status"] == 503:
            full = True
            await JSONResponse({"detail": FULL}, 503, NOT_KEPT)(scope, receive, send)
        elif not full:
            await send(message)

    return sending


def _refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """What is sent instead of an answer."""
    return PlainTextResponse(message, status, {**NOT_KEPT, **(headers or {})})


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
