"""`meq study`: list, run, status, table, verify. It parses and calls; there is no logic here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meq.cli.asking import Debug
from meq.cli.errors import errors_in_words
from meq.experiments.recipes import STUDIES, describe, make_study
from meq.experiments.render import as_text
from meq.experiments.report import study_list, tables_text, verification_text
from meq.experiments.runner import run_study
from meq.experiments.status import status_table
from meq.experiments.study import read_study
from meq.experiments.verify import verify as verify_folder

study_app = typer.Typer(no_args_is_help=True, help="Studies: several arms, several seeds.")
Folder = Annotated[Path, typer.Argument(help="The study's folder.")]


@study_app.command("list")
def list_studies(name: Annotated[str | None, typer.Argument(help="Tell all about one of them.")] = None) -> None:
    """The studies that can be run by name."""
    with errors_in_words(False):
        print(study_list() if name is None else f"{make_study(name).name}\n\n{describe(name)}\n", end="")


@study_app.command()
def run(
    name: Annotated[str, typer.Argument(help=f"A study: {', '.join(STUDIES)}.")],
    out: Annotated[Path, typer.Option(help="The study's folder; runs that are recorded there are skipped.")],
    data: Annotated[Path | None, typer.Option(help="The folder of the data set, where it needs one.")] = None,
    features: Annotated[Path | None, typer.Option(help="A folder that keeps encoded features.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="Begin runs that failed anew.")] = False,
    debug: Debug = False,
) -> None:
    """Run a study, or go on with it: the same command resumes what was interrupted."""
    options = "".join(f" --{key} {value}" for key, value in (("data", data), ("features", features)) if value)
    with errors_in_words(debug, hint=f"go on with: meq study run {name} --out {out}{options}"):
        study = make_study(name)
        records = run_study(study, out, data_root=data, store=features, retry_failed=retry_failed)
        print(tables_text(study, out))
        raise typer.Exit(int(any(record.error is not None for record in records)))


@study_app.command()
def status(folder: Folder, debug: Debug = False) -> None:
    """How far a study has come."""
    with errors_in_words(debug):
        print(as_text(status_table(folder, read_study(folder))), end="")


@study_app.command()
def table(
    folder: Folder,
    only: Annotated[list[str] | None, typer.Option(help="A table by name, such as dev-accuracy; repeatable.")] = None,
    form: Annotated[str, typer.Option("--format", help="txt, md, tex or csv.")] = "txt",
    paper: Annotated[bool, typer.Option(help="Show the paper's published figures beside ours.")] = False,
    debug: Debug = False,
) -> None:
    """Print a study's tables, made from its records."""
    with errors_in_words(debug):
        print(tables_text(read_study(folder), folder, names=only or (), form=form, paper=paper), end="")


@study_app.command()
def verify(
    folder: Folder,
    require_checkpoints: Annotated[bool, typer.Option(help="A checkpoint that is not there is a fault.")] = False,
    debug: Debug = False,
) -> None:
    """Rehash every file, recompute every metric, rebuild every table; exit with 1 if anything differs."""
    with errors_in_words(debug):
        found = verify_folder(folder, require_checkpoints=require_checkpoints)
        print(verification_text(folder, found), end="")
        raise typer.Exit(0 if found.ok else 1)
