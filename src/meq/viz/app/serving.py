"""A web server of our own around the page: it listens at one address, and does not wait for those who dawdle."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from meq.viz.app.bodies import Application

FIRST_PORT, PORTS = 7860, 100
"""The first free one of these is taken, unless one is asked for."""
HEAD_SECONDS = 20.0
"""For the head of a request to arrive."""
CONNECTIONS = 600
"""Open at once; every page that is open holds two or three."""
START_SECONDS = 30.0


class PromptProtocol(H11Protocol):
    """HTTP by h11. A connection whose request does not begin in time is closed, so that none is held for nothing."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_idle():
            self._expect_head()
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return str(self.conn.their_state) == "IDLE"  # by name: h11 comes with uvicorn, and is not ours to import

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._hang_up)

    def _hang_up(self) -> None:
        if self._is_idle() and self.transport is not None:
            self.transport.close()


def bound_socket(host: str, port: int | None) -> socket.socket:
    """A socket at that address: at the port, or at the first that is free."""
    wanted = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else (port,)
    for each in wanted:
        try:
            return _bound(host, each)
        except OSError as error:
            problem = error
    which = f"port {port}" if port is not None else f"none of the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1}"
    raise OSError(
        f"{which} {'can' if port is None else 'cannot'} be used at {host}: something else listens there, or it is no "
        "address of this machine; choose another"
    ) from problem


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)  # a port that another listens on can be bound, on some systems, but not listened on
    except OSError:
        made.close()
        raise
    return made


def address_of(host: str, port: int) -> str:
    """Where a browser on this machine finds it."""
    bare = host.strip("[]")
    name = {"0.0.0.0": "localhost", "::": "localhost"}.get(bare, f"[{bare}]" if ":" in bare else bare)
    return f"http://{name}:{port}/"


@contextmanager
def serving(app: Application, listening: socket.socket) -> Iterator[None]:
    """The application behind that socket, in a thread, for as long as the block lasts."""
    config = uvicorn.Config(
        app=app,
        http=PromptProtocol, ws="none", log_level="warning", server_header=False,
        limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        _wait_for(server, thread)
        yield
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listening.close()


def _wait_for(server: Any, thread: threading.Thread) -> None:
    end = time.monotonic() + START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            raise OSError("the web server did not start: see what it printed above")
        time.sleep(0.01)
