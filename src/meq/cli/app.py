"""`meq app`. It parses and calls; there is no logic here."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from meq.cli.asking import Debug
from meq.cli.errors import errors_in_words
from meq.experiments.runs.load import load_run

EXPOSED = (
    "warning: whoever can reach port {port} of {host} can use the page and your processor; there is no password. "
    "Leave out --host to keep it on this machine."
)


def app_command(
    run: Annotated[str, typer.Argument(help="The run's folder, or a repository of the Hub.")],
    host: Annotated[
        str, typer.Option(help="Where to listen; other machines can reach it unless it is this one.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="The port; the first free one from 7860 unless given.", min=1, max=65535)
    ] = None,
    debug: Debug = False,
) -> None:
    """A web page on which one watches a picture and a caption come to an agreement, step by step.

    For models of one picture and one text that iterate. It needs Gradio, which comes with the extra "app". Nothing that
    is asked on the page is kept, and nothing of it leaves this machine.
    """
    with errors_in_words(debug):
        from meq.viz.app.server import is_local, served  # on use: pictures and pages are optional

        loaded = load_run(run)
        with stopping() as stop, served(loaded, host=host, port=port) as page:
            if not is_local(host):
                print(EXPOSED.format(port=page.port, host=host), file=sys.stderr)
            print(f"Equilibrium Explorer: {page.address}  (Ctrl-C ends it)", flush=True)
            _wait(stop)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that a polite request to end sets, so that the page can tidy up behind itself."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(stop: threading.Event) -> None:
    """Until somebody asks to stop, which is the normal end."""
    try:
        stop.wait()
    except KeyboardInterrupt:
        print()
