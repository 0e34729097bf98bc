"""The page on a port of this machine: Gradio's application behind the guard, and a web server of our own around both.

Nothing is fetched from elsewhere, and nothing is kept. The server listens at one address, and does not wait for slow
clients.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from meq.errors import require
from meq.runs.load import TrainedRun
from meq.viz.app.explorer import Explorer
from meq.viz.app.guard import Guard, Hosts, Password
from meq.viz.app.uploads import MAX_BYTES, Application, Uploads

HOST = "127.0.0.1"
SILENT = {
    **{"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_SHARE": "False", "GRADIO_SSR_MODE": "False"},
    **{"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
}
FIRST_PORT, PORTS = 7860, 100
"""The first free one of these is taken, unless one is asked for."""
HEAD_SECONDS = 20.0
"""Time for the head of a request to arrive."""
CONNECTIONS = 600
"""Connections at once; every open page holds two or three."""
START_SECONDS = 30.0
SESSIONS = 200
"""Sessions whose pictures are remembered; the oldest is forgotten first."""


@dataclass(frozen=True)
class ServedPage:
    """A page that is being served."""

    address: str
    port: int
    folder: Path
    """Where Gradio would put files: nothing that anybody sends ever lies in it."""


@contextmanager
def served(
    run: TrainedRun,
    *,
    host: str = HOST,
    port: int | None = None,
    allow_hosts: Sequence[str] = (),
    password: Password | None = None,
) -> Iterator[ServedPage]:
    """The explorer of a run, for as long as the block lasts.

    Without a port, the first free one is taken. Other machines can reach the page only if `host` says so, and then it
    needs a password. `allow_hosts` are the names (NAME or NAME:PORT) that it answers to besides those of this machine
    and the address it is reached at.
    """
    hosts = Hosts.of(allow_hosts)
    if password is None and not is_local(host):
        raise ValueError(
            f"a page at {host} can be reached from other machines, and needs a password: give one, or leave out the "
            "host to keep the page on this machine"
        )
    require("gradio", "the explorer")
    folder = Path(tempfile.mkdtemp(prefix="meq-app-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # a server that is still starting may make it anew
    try:
        with environment({**SILENT, "GRADIO_TEMP_DIR": str(folder)}), bound_socket(host, port) as listening:
            explorer, uploads = Explorer(run), Uploads()  # now that it is known that the port is free
            blocks, behind = _gradio_page(explorer, uploads)
            guard = Guard(behind, uploads, hosts=hosts, password=password)
            with serving(guard, listening):
                found = int(listening.getsockname()[1])
                try:
                    yield ServedPage(address_of(host, found), found, folder)
                finally:  # before the server ends, which would wait for what is being measured
                    blocks._queue.close()
                    explorer.close()
                    guard.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _gradio_page(explorer: Explorer, uploads: Uploads) -> tuple[Any, Application]:
    """The page, and the application that shows it."""
    import gradio as gr  # here, when its settings are in place

    from meq.viz.app.page import build_page, page_style

    if explorer.no_pairs is not None:
        print(explorer.no_pairs)
    if explorer.pairs:
        explorer.look_at_example(0)  # what everybody sees first, and the model has warmed up
    blocks = build_page(explorer, uploads)
    blocks.state_session_capacity = SESSIONS
    closed: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    app = FastAPI(**closed)
    gr.mount_gradio_app(
        app, blocks, "/", app_kwargs=closed, footer_links=[], run_history=False, enable_monitoring=False, pwa=False,
        mcp_server=False, ssr_mode=False, show_error=False, allowed_paths=[], max_file_size=MAX_BYTES,
        **page_style(),
    )  # fmt: skip
    return blocks, app


def is_local(host: str) -> bool:
    """Can only this machine reach a page at that host?"""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: where it leads is not for us to know
        return False


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for as long as the block lasts: Gradio reads its settings there, at any time."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


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
            family, *_, address = socket.getaddrinfo(host.strip("[]"), each, type=socket.SOCK_STREAM)[0]
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both)
        except OSError as error:
            problem = error
    which = f"port {port}" if port is not None else f"none of the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1}"
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
