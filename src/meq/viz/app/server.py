"""The page on a port of this machine: nothing is fetched from elsewhere, nothing is kept."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from meq.experiments.runs.load import TrainedRun
from meq.viz.app.guard import Guard

HOST = "127.0.0.1"
SESSIONS = 200
"""Of which the pictures are remembered; the oldest is forgotten first."""
SILENT = {
    **{"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_SHARE": "False", "GRADIO_SSR_MODE": "False"},
    **{"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
}


@dataclass(frozen=True)
class Served:
    """A page that is being served."""

    address: str
    port: int
    folder: Path
    """Where uploads arrive, and are removed from as soon as they are read."""


@contextmanager
def served(run: TrainedRun, *, host: str = HOST, port: int | None = None) -> Iterator[Served]:
    """The explorer of a run, for as long as the block lasts; its folder for uploads is gone afterwards.

    Without a port, the first free one is taken. Other machines can reach the page only if `host` says so.
    """
    if port is not None:
        _check_port(host, port)
    folder = Path(tempfile.mkdtemp(prefix="meq-app-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # a server that is still starting may make it anew
    try:
        with environment({**SILENT, "GRADIO_TEMP_DIR": str(folder)}):
            page, launch = _built(run, folder)
            try:
                _, address, _ = page.launch(server_name=host, server_port=port, **launch)
                yield Served(address.rstrip("/") + "/", int(page.server_port), folder)
            finally:
                page.close(verbose=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_port(host: str, port: int) -> None:
    """Before anything is built: a port that is taken is known at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        raise OSError(
            f"port {port} cannot be used at {host}: something else listens there, or it is no address of this machine; "
            "choose another"
        ) from error


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


def _built(run: TrainedRun, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The page and how it is launched; Gradio is imported here, when its settings are in place."""
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ImportError("the explorer needs Gradio and matplotlib: pip install 'meq[app]'") from error
    from starlette.middleware import Middleware

    from meq.viz.app.explorer import Explorer
    from meq.viz.app.page import build_page, launch_options
    from meq.viz.app.requests import MAX_BYTES

    explorer = Explorer(run)
    if explorer.no_pairs is not None:
        print(explorer.no_pairs)
    if explorer.pairs:
        explorer.look_at_example(0)  # what everybody sees first, and the model has warmed up
    launch = {
        **{"prevent_thread_lock": True, "quiet": True, "show_error": False, "share": False, "inbrowser": False},
        **{"footer_links": [], "run_history": False, "enable_monitoring": False, "pwa": False, "mcp_server": False},
        **{"ssr_mode": False, "allowed_paths": [], "max_file_size": MAX_BYTES, "state_session_capacity": SESSIONS},
        "app_kwargs": {"middleware": [Middleware(Guard)], "docs_url": None, "redoc_url": None, "openapi_url": None},
    }
    return build_page(explorer, folder), launch | launch_options()
