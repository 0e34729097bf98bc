"""The command line. It parses and calls; there is no logic here."""

from __future__ import annotations

from typing import Annotated

import typer

from meq.cli.data import data_app
from meq.cli.encode import encode
from meq.cli.study import study_app
from meq.cli.train import train
from meq.version import __version__

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help="Mutual equilibrium.")


def _version(asked: bool) -> None:
    if asked:
        print(f"meq {__version__}")
        raise typer.Exit


@app.callback()
def root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """Mutual equilibrium: multimodal representation learning by coupled fixed points."""


app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")
app.command()(encode)
app.command()(train)


def main() -> None:
    app()
