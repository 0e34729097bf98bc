"""Between the network and Gradio: who asks, by which name, for what, and how much of it. Only what the page itself asks
for gets through, and nothing that is uploaded ever lies in a file."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from dataclasses import dataclass

from starlette.datastructures import Headers

from meq.viz.app.bodies import Application, GoneError, Message, Receive, Send, body_parts, replay, whole_body
from meq.viz.app.hosts import FOREIGN, Hosts
from meq.viz.app.password import PAUSE_SECONDS, WINDOW_SECONDS, Attempts
from meq.viz.app.rules import Rules
from meq.viz.app.uploads import KEPT_SECONDS, MAX_BODY, UploadError, Uploads, read_upload

PAGES = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
FOLDERS = ("/assets/", "/static/", "/svelte/")
UPLOAD, PROGRESS, JOIN = "/gradio_api/upload", "/gradio_api/upload_progress", "/gradio_api/queue/join"
CALLS = (UPLOAD, PROGRESS, JOIN, *(f"/gradio_api/{name}" for name in ("queue/data", "cancel", "theme.css", "reset")))
"""Of Gradio's interface. The rest of it serves files, fetches addresses, records and edits: all of that is closed."""
HEARTBEAT = re.compile(r"/gradio_api/heartbeat/\w+")
TRICKS = re.compile(r"\.\.|//|[\\%\x00-\x1f\x7f]")
"""Ways out of a folder. Whatever was encoded is decoded by now: a percent sign means that it was encoded twice."""
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
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"SAMEORIGIN"),
)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What is sent instead of an answer."""

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Guard:
    """The application that the server runs; Gradio's is behind it."""

    def __init__(self, app: Application, rules: Rules, uploads: Uploads) -> None:
        self.app, self.rules, self.uploads = app, rules, uploads
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
            await self._until_closed(scope, receive, _Sending(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    def close(self) -> None:
        """End all answers, from any thread: a page that is open listens for as long as it is."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._answering])

    async def _until_closed(self, scope: Message, receive: Receive, send: _Sending) -> None:
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
        refusal = judge_asker(scope, headers, self.rules.hosts) or await self._locked(scope, headers)
        refusal = refusal or judge_wish(scope)
        if refusal is not None:
            await _refuse(send, refusal)
            return
        try:
            await self._serve(_without_false_names(scope, headers, self.rules.hosts), receive, send)
        except UploadError as error:
            await _refuse(send, Refusal(status=error.status, message=str(error), headers=((b"connection", b"close"),)))
        except GoneError:
            return

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        path, announced = scope["path"].rstrip("/"), _announced(Headers(scope=scope))
        if path == UPLOAD:
            await self._take_upload(scope, receive, send)
        elif path == PROGRESS:
            await self._tell_progress(scope, send)
        elif scope["method"] == "POST":
            body = await whole_body(receive, most=MAX_QUESTION, announced=announced)
            told = _when_full(send) if path == JOIN else send
            await self.app(scope, replay(body, receive), told)
        else:
            await self.app(scope, receive, send)

    async def _locked(self, scope: Message, headers: Headers) -> Refusal | None:
        """A refusal unless the password was given. After many wrong ones not even the right one is looked at."""
        if self.rules.password is None:
            return None
        address = str((scope.get("client") or ("",))[0])
        if self.attempts.too_many(address):
            wait = str(round(WINDOW_SECONDS)).encode()
            return Refusal(status=429, message="Too many wrong passwords: wait.", headers=((b"retry-after", wait),))
        given = headers.get("authorization")
        if given is not None and self.rules.password.opens(given):
            return None
        if given is not None:
            self.attempts.count(address)
            await asyncio.sleep(PAUSE_SECONDS)
        asks = (b"www-authenticate", b'Basic realm="Equilibrium Explorer", charset="UTF-8"')
        return Refusal(status=401, message="This page needs a name and a password.", headers=(asks,))

    async def _take_upload(self, scope: Message, receive: Receive, send: Send) -> None:
        """A ticket for the picture: where it is kept is nobody's business."""
        headers = Headers(scope=scope)
        name = _upload_name(scope)
        try:
            parts = body_parts(receive, most=MAX_BODY, announced=_announced(headers))
            ticket = self.uploads.keep(await read_upload(headers, parts))
        finally:
            self._arrived.append(name)
        asyncio.get_running_loop().call_later(KEPT_SECONDS + 1, self.uploads.sweep)
        await _send(send, 200, json.dumps([ticket]).encode(), b"application/json")

    async def _tell_progress(self, scope: Message, send: Send) -> None:
        """The page wants to hear when its upload is over; how far it is, it sees itself."""
        name, loop = _upload_name(scope), asyncio.get_running_loop()
        end = loop.time() + PROGRESS_SECONDS
        while name not in self._arrived and loop.time() < end:
            await asyncio.sleep(0.05)
        await _send(send, 200, b'data: {"msg": "done"}\n\n', b"text/event-stream")


def judge_asker(scope: Message, headers: Headers, hosts: Hosts) -> Refusal | None:
    """A refusal of requests under a name that is not ours, or from somebody else's page."""
    names = headers.getlist("host")
    if len(names) != 1 or not hosts.knows(names[0], scope.get("server")):
        return Refusal(
            status=421,
            message="This page does not answer to that name. If it is to: meq app --allow-host NAME (or NAME:PORT).",
        )
    origins = headers.getlist("origin")
    foreign = any(not hosts.is_own(origin, names[0]) for origin in origins)
    if foreign or (headers.get("sec-fetch-site") in FOREIGN and scope["path"] != "/"):
        return Refusal(status=403, message="Other pages may not use this one.")
    return None


def judge_wish(scope: Message) -> Refusal | None:
    """A refusal of what the page does not ask for."""
    if scope["method"] not in METHODS:
        return Refusal(status=405, message="not this way")
    return None if is_needed(scope["path"]) else Refusal(status=404, message="not here")


def is_needed(path: str) -> bool:
    """Does the page ask for it?"""
    if TRICKS.search(path):
        return False
    if path in PAGES or path.startswith(FOLDERS) or HEARTBEAT.fullmatch(path):
        return True
    return path.rstrip("/") in CALLS


def _without_false_names(scope: Message, headers: Headers, hosts: Hosts) -> Message:
    """The request without what a proxy would say, unless it speaks of a name that is allowed: Gradio believes it."""
    forwarded = headers.get("x-forwarded-host")
    if forwarded is None or hosts.knows(forwarded, None):
        return scope
    kept = [(name, value) for name, value in scope["headers"] if not name.lower().startswith(b"x-forwarded-")]
    return {**scope, "headers": kept}


def _announced(headers: Headers) -> int:
    """Bytes of the body, as the head says; 0 where it says nothing."""
    said = headers.get("content-length", "0")
    return int(said) if said.isdecimal() else 0


def _upload_name(scope: Message) -> str:
    """What the page calls its upload, to ask how far it is."""
    found = UPLOAD_NAME.search(scope.get("query_string", b""))
    return found[1].decode() if found else ""


class _Sending:
    """The way back to who asks: our headers with every answer."""

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


def _when_full(send: Send) -> Send:
    """Says in a sentence what Gradio says in figures, when there is no room to wait."""
    full = False

    async def sending(message: Message) -> None:
        nonlocal full
        if message["type"] == "http.response.start" and message["status"] == 503:
            full = True
            await _send(send, 503, json.dumps({"detail": FULL}).encode(), b"application/json")
        elif not full:
            await send(message)

    return sending


async def _refuse(send: Send, refusal: Refusal) -> None:
    await _send(send, refusal.status, refusal.message.encode(), b"text/plain; charset=utf-8", refusal.headers)


async def _send(
    send: Send, status: int, body: bytes, kind: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    whole = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*whole, *headers]})
    await send({"type": "http.response.body", "body": body})
