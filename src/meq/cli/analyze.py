"""`meq analyze`: it parses, calls, and prints."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from meq.cli.asking import AsJson, Debug, OtherData, Part, Root, Run, SkipBad
from meq.cli.bars import Bars
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_data, check_folder
from meq.experiments.runs.analysis import FOLDER
from meq.experiments.runs.analyze import Looking, analyze_run
from meq.experiments.runs.data import Reading
from meq.experiments.runs.load import load_run
from meq.training.plain import dumps


def analyze(
    run: Run,
    data: OtherData = None,
    root: Root = None,
    split: Part = None,
    samples: Annotated[int, typer.Option(help="How many samples are diagnosed.", min=1)] = 4,
    limit: Annotated[int, typer.Option(help="How many samples are followed along the steps, at most.", min=1)] = 1000,
    horizon: Annotated[int | None, typer.Option(help="Steps to follow them for; twice the read depth K.")] = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Diagnose a trained run: is its equilibrium healthy, who moves whom, what does each step add?

    Looks at test, or else at dev. What is found is kept in the run's folder, where reports find it.
    """
    with errors_in_words(debug), Bars(Console(stderr=True), shown=True) as bars:
        check_data(data, root)
        reading = Reading(on_bad="skip" if skip_bad else "raise", progress=bars)
        looking = Looking(split=split, samples=samples, limit=limit, horizon=horizon)
        trained = load_run(run)
        if trained.folder.name == "model":
            check_folder(trained.folder.parent / FOLDER, "the analysis is kept in")
        found = analyze_run(trained, data, root=root, looking=looking, reading=reading)
    print(dumps(found) if as_json else found, end="" if as_json else "\n")
    if not as_json and trained.folder.name == "model":
        print(f"\nkept in {trained.folder.parent / FOLDER}")
