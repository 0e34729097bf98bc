"""`meq predict`, `meq quantise` and `meq app`: a trained run put to use."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meq.cli.checks import check_file, check_folder, check_table, check_there
from meq.cli.options import AsJson, EncoderNames, Full, Int8, OwnDevice, Run, SkipBad, Steps, Store, command
from meq.cli.output import Bars, say
from meq.data.table_files import is_table
from meq.errors import require

if TYPE_CHECKING:
    from meq.web.gate import Password

PROBABILITIES = 20
LEAST_WEIGHTS = 1 << 18
"""That of the library, written here so that --help need not import it; a test compares them."""
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
    data: Annotated[
        str,
        typer.Argument(
            help="A table with the columns of training (.csv, .tsv, .jsonl, .parquet); or a picture (.png, .jpg, ...), "
            "a sound (.wav) or a text of one example."
        ),
    ],
    encoders: EncoderNames,
    more: Annotated[
        list[str] | None,
        typer.Argument(help="After a table: the folder its paths start from. Of one example: its other contents."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file of a table's answers: .csv, .jsonl or .parquet."),
    ] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="Column of ids; else file and line.")] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Column of the table that stands beside the answers; repeatable. All unless given; none for none.",
        ),
    ] = None,
    probabilities: Annotated[
        int, typer.Option(help="A column per class for at most so many classes; 0 for none.", min=0)
    ] = PROBABILITIES,
    steps: Steps = None,
    full: Full = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Probabilities as the model gives them, without the run's temperature.")
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(help="Sets of classes, or intervals, that hold the true answer so often, such as 0.9."),
    ] = None,
    int8: Int8 = False,
    skip_bad: SkipBad = False,
    store: Store = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the file of answers.")] = False,
    device: OwnDevice = None,
    as_json: AsJson = False,
) -> None:
    """Answer the rows of a new table, with confidence, steps and residuals: meq predict RUN new.csv -o answers.csv

    No label column is needed. An empty cell is a missing modality. Rows stay in the order of the table; columns:
    id, line, those of the table, answer, confidence, p(CLASS), steps, residual(MODALITY), stopped, note. With
    --coverage also set, or low and high for a number: meq calibrate RUN --coverage makes that possible where training
    did not.

    One example is answered on the terminal: meq predict RUN picture.png "a caption". What is a table, a picture or a
    sound is known by its suffix; everything else is a text.
    """
    is_file = is_table(data)
    _check_predict(data, more or [], out, force=force)
    from meq.runs.answers import Answer, summary_lines
    from meq.runs.load import load_run
    from meq.runs.predict import answers_to
    from meq.training.prepare import say_left_out

    if store is not None:
        check_folder(store, "--store")
    trained = load_run(run)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    trained.move_to(device)
    depth = trained.depth_read(steps, full)
    trained = trained.quantised() if int8 else trained
    with Bars(shown=is_file) as bars:
        answers = answers_to(
            trained,
            data,
            more or (),
            id_column=id_column,
            columns=() if columns == ["none"] else columns,
            on_bad="skip" if skip_bad else "raise",
            encoders=encoders.by_kind(),
            progress=bars,
            steps=depth,
            store=store,
            raw=raw,
            coverage=coverage,
        )
    if isinstance(answers, Answer):
        print(json.dumps(answers.to_json(), indent=1) if as_json else answers)
        return
    assert out is not None
    answers.save(out, probabilities=probabilities, force=force)
    say_left_out(answers.left_out, say)
    say(*answers.warnings())
    summary = {**answers.summary(), "file": str(out)}
    print(json.dumps(summary, indent=1) if as_json else "\n".join(summary_lines(summary)))


def _check_predict(data: str, more: Sequence[str], out: Path | None, *, force: bool) -> None:
    """What can be known to be wrong before the run is loaded."""
    if not is_table(data):
        if out is not None:
            from meq.runs.one_example import kind_of

            if Path(data).exists() and kind_of(data) == "text":  # a folder, or a file that is no table either
                check_table(data)
            raise ValueError(f"{data!r:.80} is no table, and one example is answered on the terminal: leave out --out")
        return
    check_table(data)
    if out is None:
        raise ValueError("say where a table's answers go: --out answers.csv (or .jsonl, .parquet)")
    from meq.runs.answers import check_place

    check_place(out, force=force)
    check_file(out, "--out")
    for folder in more:
        check_there(Path(folder), "folder")


@command
def quantise(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write; it must not be there yet.")],
    least_weights: Annotated[
        int, typer.Option(help="Linear layers of fewer weights stay float; below 512 x 512, int8 hardly pays.", min=0)
    ] = LEAST_WEIGHTS,
) -> None:
    """Write a run's model with int8 weights: about a quarter of the size, and faster on CPUs that multiply bytes.

    The folder is used like any other run, by `meq predict` and its like; what needs gradients, as explain does, takes
    the float run. `meq evaluate RUN --int8` says beforehand how many answers change.
    """
    from meq.runs.load import load_run
    from meq.runs.quantise import save_quantised

    check_folder(out, "--out")
    trained = load_run(run)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    say(str(save_quantised(trained, out, least_weights=least_weights)))


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

    require("gradio", "the explorer")
    from meq.viz.app.server import served  # pictures and pages are optional
    from meq.web.server import is_local

    password = password_of(auth, auth_file, AUTH)
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


def password_of(auth: str | None, auth_file: Path | None, variable: str) -> Password | None:
    """The password that was given in one of the ways there are; two at once are an error."""
    from meq.web.gate import Password

    if auth_file is not None and auth is not None:
        raise ValueError(f"there are two passwords: give --auth (or {variable}) or --auth-file, not both")
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
