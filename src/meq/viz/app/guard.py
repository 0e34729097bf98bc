"""Between the network and Gradio: only what the page itself asks for gets through, and nothing that is uploaded is
written to a file. Who may ask at all, `meq.web.gate` decides.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from meq.viz.app.uploads import KEPT_SECONDS, MAX_BODY, Uploads, read_upload
from meq.web.bodies import Application, Message, Receive, Send, announced_length, body_parts, replay, whole_body
from meq.web.gate import NOT_KEPT, Gate, Hosts, Password

PAGES = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
FOLDERS = ("/assets/", "/static/", "/svelte/")
UPLOAD, PROGRESS, JOIN = "/gradio_api/upload", "/gradio_api/upload_progress", "/gradio_api/queue/join"
CALLS = (UPLOAD, PROGRESS, JOIN, *(f"/gradio_api/{name}" for name in ("queue/data", "cancel", "theme.css", "reset")))
"""What the page uses of Gradio's interface. The rest serves files, fetches addresses, records, edits: it is closed."""
HEARTBEAT = re.compile(r"/gradio_api/heartbeat/\w+")
TRICKS = re.compile(r"\.\.|//|[\\%\x00-\x1f\x7f]")
"""Ways to leave a folder. The path is decoded by now: a percent sign means that it was encoded twice."""
UPLOAD_NAME = re.compile(rb"(?:^|&)upload_id=(\w{1,64})(?:&|$)", re.ASCII)
MAX_QUESTION = 2**18
"""Bytes of a request that is no upload: two captions, however they are written, fit in it."""
PROGRESS_SECONDS = 60.0
FULL = "Too many people are waiting for this page: try again in a minute."


class Guard(Gate):
    """The application that the server runs; Gradio's is behind it."""

    noun, realm, command = "page", "Equilibrium Explorer", "meq app"

    def __init__(
        self, app: Application, uploads: Uploads, *, hosts: Hosts | None = None, password: Password | None = None
    ) -> None:
        super().__init__(app, hosts=hosts, password=password)
        self.uploads = uploads
        self._arrived: deque[str] = deque(maxlen=256)
        """Names that the page gave to uploads which are over."""

    def knows(self, path: str) -> bool:
        return is_needed(path)

    async def pass_on(self, scope: Message, receive: Receive, send: Send) -> None:
        scope = _without_forwarding(scope, Headers(scope=scope), self.hosts)
        path, announced = scope["path"].rstrip("/"), announced_length(Headers(scope=scope))
        if path == UPLOAD:
            await self._take_upload(scope, receive, send)
        elif path == PROGRESS:
            await self._tell_progress(scope, receive, send)
        elif scope["method"] == "POST":
            body = await whole_body(receive, most=MAX_QUESTION, announced=announced)
            await self.app(scope, replay(body, receive), _when_full(scope, receive, send) if path == JOIN else send)
        else:
            await self.app(scope, receive, send)

    async def _take_upload(self, scope: Message, receive: Receive, send: Send) -> None:
        """Keep the picture, and answer with a ticket for it, which names no place."""
        headers = Headers(scope=scope)
        name = _upload_name(scope)
        try:
            parts = body_parts(receive, most=MAX_BODY, announced=announced_length(headers))
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


def _upload_name(scope: Message) -> str:
    """What the page calls its upload, to ask how far it is."""
    found = UPLOAD_NAME.search(scope.get("query_string", b""))
    return found[1].decode() if found else ""


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
