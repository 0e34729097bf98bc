"""The page on a port of this machine: Gradio's application behind the guard, and the web server around both.

Nothing is fetched from elsewhere, and nothing is kept.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from meq.runs.load import TrainedRun
from meq.viz.app.explorer import Explorer
from meq.viz.app.guard import Guard
from meq.viz.app.uploads import MAX_BYTES, Uploads
from meq.web.bodies import Application
from meq.web.gate import Hosts, Password
from meq.web.server import HOST, address_of, bound_socket, is_local, serving

SILENT = {
    **{"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_SHARE": "False", "GRADIO_SSR_MODE": "False"},
    **{"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
}
FIRST_PORT = 7860
"""The first free one from here is taken, unless one is asked for."""
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
    folder = Path(tempfile.mkdtemp(prefix="meq-app-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # a server that is still starting may make it anew
    try:
        with (
            environment({**SILENT, "GRADIO_TEMP_DIR": str(folder)}),
            bound_socket(host, port, first=FIRST_PORT) as listening,
        ):
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
