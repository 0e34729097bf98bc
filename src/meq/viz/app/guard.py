"""Between the network and Gradio: only what the page itself asks for gets through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

PAGES = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
FOLDERS = ("/assets/", "/static/", "/svelte/")
CALLS = ("queue/join", "queue/data", "upload", "upload_progress", "startup-events", "cancel", "theme.css", "reset")
"""Of Gradio's interface. The rest of it serves files, fetches addresses, records and edits: all of that is closed."""
HEARTBEAT = "/gradio_api/heartbeat/"
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class Guard:
    """An ASGI middleware: 404 for what the page does not need, and headers that keep the browser at this address."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http" and is_needed(scope["path"]):
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"not here"})
        else:
            await send({"type": "websocket.close", "code": 1008})


def is_needed(path: str) -> bool:
    """Does the page ask for it?"""
    if ".." in path or "//" in path:
        return False
    if path in PAGES or path.startswith((*FOLDERS, HEARTBEAT)):
        return True
    return path.startswith("/gradio_api/") and path.removeprefix("/gradio_api/").rstrip("/") in CALLS


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return sending
