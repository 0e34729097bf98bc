"""The page on a port of this machine: nothing is fetched from elsewhere, nothing is kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from meq.experiments.load import TrainedRun
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
    folder = Path(tempfile.mkdtemp(prefix="meq-app-"))
    try:
        with environment({**SILENT, "GRADIO_TEMP_DIR": str(folder)}):
            page, launch = _built(run, folder)
            try:
                address = _launched(page, host, port, launch)
                yield Served(address.rstrip("/") + "/", int(page.server_port), folder)
            finally:
                page.close(verbose=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _launched(page: Any, host: str, port: int | None, options: Mapping[str, Any]) -> str:
    try:
        _, address, _ = page.launch(server_name=host, server_port=port, **options)
    except OSError as error:
        what = "no port is free" if port is None else f"port {port} cannot be used"
        raise OSError(
            f"{what} at {host}: something else listens there, or it is no address of this machine; choose another"
        ) from error
    return str(address)


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
