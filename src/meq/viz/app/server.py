"""The page on a port of this machine: nothing is fetched from elsewhere, nothing is kept."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from meq.runs.load import TrainedRun
from meq.viz.app.guard import Hosts, Rules
from meq.viz.app.password import Password

HOST = "127.0.0.1"
SILENT = {
    **{"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_SHARE": "False", "GRADIO_SSR_MODE": "False"},
    **{"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
}


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
    rules = Rules(hosts=Hosts.of(allow_hosts), password=password)
    if password is None and not is_local(host):
        raise ValueError(
            f"a page at {host} can be reached from other machines, and needs a password: give one, or leave out the "
            "host to keep the page on this machine"
        )
    folder = Path(tempfile.mkdtemp(prefix="meq-app-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # a server that is still starting may make it anew
    try:
        with environment({**SILENT, "GRADIO_TEMP_DIR": str(folder)}), _listening(run, rules, host, port) as address:
            yield ServedPage(*address, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _listening(run: TrainedRun, rules: Rules, host: str, port: int | None) -> Iterator[tuple[str, int]]:
    """The page's address and port; Gradio is imported here, when its settings are in place."""
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ImportError("the explorer needs Gradio and matplotlib: pip install 'meq[app]'") from error
    from meq.viz.app.serving import address_of, bound_socket, mounted_page, serving

    with bound_socket(host, port) as listening:  # a port that is taken is known before anything is built
        page = mounted_page(run, rules)
        with serving(page.app, listening):
            found = int(listening.getsockname()[1])
            try:
                yield address_of(host, found), found
            finally:
                page.close()  # before the server ends, which would wait for what is being measured


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
