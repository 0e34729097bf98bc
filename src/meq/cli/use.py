"""`meq predict` and `meq app`: a trained run put to use."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meq.cli.checks import check_file, check_table, check_there
from meq.cli.options import AsJson, EncoderNames, Full, Root, Run, SkipBad, Steps, asked_depth, command
from meq.cli.output import Bars, say, summary_lines

if TYPE_CHECKING:
    from meq.viz.app.guard import Password

PROBABILITIES = 20
AUTH = "MEQ_APP_AUTH"
EXPOSED = (
    "warning: whoever can reach port {port} of {host} and has the password can use the page and your processor, and "
    "what is sent can be read on the way: put a proxy with TLS before it, or leave out --host and stay on this machine."
)
NEEDS_PASSWORD = (
    "a page at {host} can be reached from other machines, and needs a password: give --auth-file FILE (or --auth "
    "USER:PASSWORD, or " + AUTH + "), or leave out --host to keep the page on this machine"
)


@command
def predict(
    run: Run,
    table: Annotated[Path, typer.Argument(help="A table with the columns of training: .csv, .tsv, .jsonl, .parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file of answers: .csv, .jsonl or .parquet.")],
    encoders: EncoderNames,
    root: Root = None,
    id_column: Annotated[str | None, typer.Option("--id", help="Column of ids; else file and line.")] = None,
    probabilities: Annotated[
        int, typer.Option(help="A column per class for at most so many classes; 0 for none.", min=0)
    ] = PROBABILITIES,
    steps: Steps = None,
    full: Full = False,
    skip_bad: SkipBad = False,
    force: Annotated[bool, typer.Option("--force", help="Write over the file of answers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Answer the rows of a new table, with confidence, steps and residuals.

    No label column is needed. An empty cell is a missing modality. Rows stay in the order of the table; columns:
    id, line, answer, confidence, p(CLASS), steps, residual(MODALITY), stopped, note.
    """
    from meq.runs.load import load_run
    from meq.runs.predict import check_place, predict_table
    from meq.training.prepare import say_left_out

    check_place(out, force=force)
    check_file(out, "--out")
    check_table(table)
    if root is not None:
        check_there(root, "folder")
    trained = load_run(run)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    depth = asked_depth(steps, full, trained.model)
    with Bars() as bars:
        answers = predict_table(
            trained,
            table,
            root=root,
            id_column=id_column,
            on_bad="skip" if skip_bad else "raise",
            encoders=encoders.by_kind(),
            progress=bars,
            steps=depth,
        )
    answers.save(out, probabilities=probabilities, force=force)
    say_left_out(answers.left_out, say)
    summary = {**answers.summary(), "file": str(out)}
    print(json.dumps(summary, indent=1) if as_json else "\n".join(summary_lines(summary)))


@command
def app_command(
    run: Run,
    host: Annotated[
        str, typer.Option(help="Where to listen; unless it is this machine, others can reach it, and need a password.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="The port; the first free one from 7860 unless given.", min=1, max=65535)
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name that the page answers to besides those of this machine, NAME or NAME:PORT; repeatable. Of a "
            "proxy before it, or localhost:9000 for a port that is forwarded.",
        ),
    ] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            metavar="USER:PASSWORD", envvar=AUTH,
            help="Ask for this name and password. Whoever lists the processes of this machine sees it, unless it comes "
            "from the variable or from --auth-file.",
        ),
    ] = None,
    auth_file: Annotated[
        Path | None, typer.Option(help="A file with USER:PASSWORD in its first line that only you may read.")
    ] = None,
) -> None:  # fmt: skip
    """A web page on which one watches a picture and a caption come to an agreement, step by step.

    For models of one picture and one text that iterate. It needs Gradio, which comes with the extra "app". Nothing that
    is asked on the page is kept, and nothing of it leaves this machine.

    To let others use it: keep it on this machine, put a web server with TLS before it and name that with --allow-host,
    with --auth-file for a password; or forward the port by ssh. A page that listens beyond this machine needs one.
    """
    from meq.runs.load import load_run
    from meq.viz.app.server import is_local, served  # pictures and pages are optional

    password = _password(auth, auth_file)
    if password is None and not is_local(host):
        raise ValueError(NEEDS_PASSWORD.format(host=host))
    loaded = load_run(run)
    with stopping() as stop, served(
        loaded, host=host, port=port, allow_hosts=allow_host or (), password=password
    ) as page:  # fmt: skip
        if not is_local(host):
            print(EXPOSED.format(port=page.port, host=host), file=sys.stderr)
        print(f"Equilibrium Explorer: {page.address}  (Ctrl-C ends it)", flush=True)
        _wait(stop)


def _password(auth: str | None, auth_file: Path | None) -> Password | None:
    from meq.viz.app.guard import Password

    if auth_file is not None and auth is not None:
        raise ValueError(f"there are two passwords: give --auth (or {AUTH}) or --auth-file, not both")
    if auth_file is not None:
        return Password.read(auth_file)
    return None if auth is None else Password.of(auth)


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
