"""`meq serve` and `meq export`: a trained run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meq.cli.checks import check_folder
from meq.cli.options import Full, Int8, Run, Steps, command
from meq.cli.output import say
from meq.cli.use import password_of
from meq.web.limits import Limits

AUTH = "MEQ_SERVE_AUTH"
LIMITS = Limits()


@command
def serve(
    run: Run,
    host: Annotated[
        str, typer.Option(help="Where to listen; unless it is this machine, others can reach it, and need a password.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="The port; the first free one from 8000 unless given.", min=1, max=65535)
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name that it answers to besides those of this machine, NAME or NAME:PORT; repeatable. Of a proxy "
            "before it, or localhost:9000 for a port that is forwarded.",
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
    steps: Steps = None,
    full: Full = False,
    int8: Int8 = False,
    limits: Limits = LIMITS,
) -> None:  # fmt: skip
    """Answer other programs over HTTP: JSON in, answers with probabilities, steps and notes out.

    POST an example to /predict, {"photo": "BASE64", "caption": "a text", "numbers": [1, 2]}, or a list of them; what is
    null or left out is a missing modality. Sounds are WAV files in base64, choices a list of texts. /health, /version
    and /openapi.json say the rest. It needs FastAPI, which comes with the extra "serve". Nothing that is sent is
    written to a file, and nothing of it leaves this machine.

    To let others use it: keep it on this machine and put a web server with TLS before it that is named with
    --allow-host, with --auth-file for a password.
    """
    from meq.runs.load import load_run
    from meq.runs.serve import NEEDS_PASSWORD
    from meq.runs.serve import serve as serve_run
    from meq.web.server import is_local

    password = password_of(auth, auth_file, AUTH)
    if password is None and not is_local(host):
        raise ValueError(NEEDS_PASSWORD.format(host=host))
    trained = load_run(run)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    depth = trained.depth_read(steps, full)
    serve_run(
        trained.quantised() if int8 else trained,
        host=host,
        port=port,
        allow_hosts=allow_host or (),
        password=password,
        limits=limits,
        steps=depth,
        say=lambda words: print(words, flush=True),
    )


@command
def export(
    run: Run,
    onnx: Annotated[Path, typer.Option(help="The folder to write; it must not be there yet.")],
    steps: Steps = None,
) -> None:
    """Write a run as ONNX: model, preprocessing, labels, and a loop in Python that needs neither torch nor meq.

    `python FOLDER/use.py TABLE.csv` answers the rows of a table with numpy and onnxruntime. Writing it needs the extra
    "onnx". Vectors, and pictures and texts read by the encoders patches, words and cnn, go the whole way; of what
    another encoder read, the loop takes the features.
    """
    from meq.runs.load import load_run

    check_folder(onnx, "--onnx")
    if onnx.exists():
        raise ValueError(f"--onnx {onnx}: it is there already; choose another name")
    trained = load_run(run)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    made = trained.export(onnx=onnx, steps=steps)
    print(made)
