"""A web server of our own around an application: it listens at one address, and does not wait for slow clients."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import meq.web.needs  # noqa: F401

# isort: split
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from meq.web.bodies import Application

HOST = "127.0.0.1"
PORTS = 100
"""So many are tried for a free one, unless one is asked for."""
HEAD_SECONDS = 20.0
"""Time for the head of a request to arrive."""
CONNECTIONS = 600
"""Connections at once; every open page holds two or three."""
START_SECONDS = 30.0


def is_local(host: str) -> bool:
    """Can only this machine reach what is served at that host?"""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: where it leads is not for us to know
        return False


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


def bound_socket(host: str, port: int | None, *, first: int) -> socket.socket:
    """A socket at that address: at the port, or, unless one is given, at the first that is free from `first` on."""
    wanted = range(first, first + PORTS) if port is None else (port,)
    for each in wanted:
        try:
            family, *_, address = socket.getaddrinfo(host.strip("[]"), each, type=socket.SOCK_STREAM)[0]
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both)
        except OSError as error:
            problem = error
    which = f"port {port}" if port is not None else f"none of the ports {first} to {first + PORTS - 1}"
    raise OSError(
        f"{which} {'can' if port is None else 'cannot'} be used at {host}: something else listens there, or it is no "
        "address of this machine; choose another"
    ) from problem


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
        end = time.monotonic() + START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise OSError("the web server did not start: see what it printed above")
            time.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listening.close()
