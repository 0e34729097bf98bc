"""`meq study`: list, run, status, table, verify. It parses and calls; there is no logic here."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from meq.cli.asking import (
    AsJson,
    Audios,
    Debug,
    Group,
    Images,
    Label,
    Root,
    Settings,
    Split,
    Texts,
    Vectors,
    request,
)
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_data, check_folder, check_there
from meq.errors import require
from meq.experiments.build import places_of
from meq.experiments.executors.choice import NAMES, choose_executor
from meq.experiments.recipes import STUDIES, describe, make_study
from meq.experiments.render import as_text
from meq.experiments.runner import run_study
from meq.experiments.status import status_table
from meq.experiments.study import read_study
from meq.experiments.texts import study_list, table_json, tables_text, verification_text
from meq.experiments.untrained import UNTRAINED, run_untrained
from meq.experiments.verify import verify as verify_folder
from meq.training.plain import dumps

study_app = typer.Typer(no_args_is_help=True, help="Studies: several arms, several seeds.")
Folder = Annotated[Path, typer.Argument(help="The study's folder.")]


@study_app.command("list")
def list_studies(
    name: Annotated[str | None, typer.Argument(help="Tell all about one of them.")] = None, as_json: AsJson = False
) -> None:
    """The studies that can be run by name."""
    with errors_in_words(False):
        print(study_list(as_json=as_json) if name is None else f"{name}\n\n{describe(name)}\n", end="")


@study_app.command()
def run(
    name: Annotated[str, typer.Argument(help=f"A study: {', '.join([*STUDIES, *UNTRAINED])}.")],
    data: Annotated[
        str | None, typer.Argument(help="A data set or a table; the study's own default unless given.")
    ] = None,
    root: Root = None,
    out: Annotated[
        Path | None, typer.Option(help="The study's folder; what is recorded there is not run again.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="The form for two cores, instead of the paper's sizes.")] = False,
    seed: Annotated[
        list[int] | None, typer.Option(help="A seed; repeatable. The study's own three unless given.")
    ] = None,
    rates: Annotated[int, typer.Option(help="Learning rates tried for every arm; the best on dev stands for it.")] = 1,
    image: Images = None,
    text: Texts = None,
    audio: Audios = None,
    vector: Vectors = None,
    label: Label = None,
    split: Split = None,
    group: Group = None,
    set_: Settings = None,
    features: Annotated[Path | None, typer.Option(help="A folder that keeps encoded features.")] = None,
    read: Annotated[Path | None, typer.Option(help="Folder of the set that is only read, such as COD10K.")] = None,
    reuse: Annotated[
        list[Path] | None, typer.Option(help="A study's folder to take equal runs from; repeatable.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option(help="Begin runs that failed anew.")] = False,
    on: Annotated[str, typer.Option(help=f"{', '.join(NAMES)}: in this process, in several, on Ray.")] = NAMES[0],
    workers: Annotated[
        int | None, typer.Option(help="Runs at the same time; what there is room for unless given.", min=1)
    ] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; one of this machine if there is none.")] = None,
    trust_cluster: Annotated[
        bool, typer.Option(help="Let machines beyond this one take part: Ray sends them code and data as pickles.")
    ] = False,
    memory: Annotated[float | None, typer.Option(help="GB that a run needs; estimated unless given.")] = None,
    debug: Debug = False,
) -> None:
    """Run a study, or go on with it: the same command resumes what was interrupted."""
    with errors_in_words(debug, hint=f"go on with: {_same_command(name, out)}"):
        _check_outset(data, root, [out or Path("studies"), *([] if features is None else [features])], reuse or ())
        if on == "ray":
            require("ray", "--on ray")
        if name in UNTRAINED:
            print(run_untrained(name, out, quick=quick), end="")
            return
        asked = None
        if data is not None:
            asked = request(data, None, (image, text, audio, vector), (label, split, group), set_)
        study = make_study(name, asked, quick=quick, seeds=seed, rates=rates)
        folder = out or Path("studies") / study.name
        places = places_of(asked, root, store=features, read=read)
        executor = choose_executor(on, workers=workers, address=address, memory=memory, trusted=trust_cluster)
        records = run_study(study, folder, places=places, on=executor, reuse=reuse or (), retry_failed=retry_failed)
        print(tables_text(study, folder))
        print(f"study: {folder}")
        raise typer.Exit(int(any(record.error is not None for record in records)))


def _check_outset(data: str | None, root: Path | None, places: Sequence[Path], reuse: Sequence[Path]) -> None:
    """What can be wrong with files and folders, before anything is read."""
    check_data(data, root)
    for place in places:
        check_folder(place, "the study's files go to")
    for folder in reuse:
        check_there(folder, "study to --reuse")


def _same_command(name: str, out: Path | None) -> str:
    """What was typed, where that is known."""
    if Path(sys.argv[0]).stem in ("meq", "__main__"):
        return shlex.join(["meq", *sys.argv[1:]])
    return f"meq study run {name}" + (f" --out {out}" if out else "") + ", and the same options"


@study_app.command()
def status(folder: Folder, as_json: AsJson = False, debug: Debug = False) -> None:
    """How far a study has come."""
    with errors_in_words(debug):
        table = status_table(folder, read_study(folder))
        print(table_json(table) if as_json else as_text(table), end="")


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
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Rehash every file, recompute every metric, rebuild every table; exit with 1 if anything differs."""
    with errors_in_words(debug):
        found = verify_folder(folder, require_checkpoints=require_checkpoints)
        print(dumps(found) if as_json else verification_text(folder, found), end="")
        raise typer.Exit(0 if found.ok else 1)
