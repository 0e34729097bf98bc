"""meq demo: from nothing to a report, on a set that is generated on the spot."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from meq.cli.asking import Debug
from meq.cli.bars import Bars
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_folder
from meq.data.registry import open_data
from meq.errors import require
from meq.experiments.recipes import make_study
from meq.experiments.runner import run_study
from meq.experiments.runs.analyze import Looking, analyze_run
from meq.experiments.runs.data import Reading
from meq.experiments.runs.load import load_run
from meq.experiments.study import run_place
from meq.experiments.texts import tables_text
from meq.viz.listing import save_sheet

SHOWN = ("test-accuracy", "answers-by-kind", "steps-meq")


def demo(
    out: Annotated[Path, typer.Option(help="Where to: the same command goes on with what is there.")] = Path(
        "studies/demo"
    ),
    debug: Debug = False,
) -> None:
    """Train the equilibrium and two baselines of its size on generated pictures and statements; then report.

    About five minutes on two cores. Nothing is downloaded.
    """
    console = Console()
    with errors_in_words(debug, hint="the same command goes on from there"):
        require("matplotlib", "the report at the end")
        check_folder(out, "--out")
        study = make_study("demo", "scenes", quick=True)
        console.print(
            f"Pictures of coloured shapes, some camouflaged, some covered, and statements that are true of them, false "
            f"or open. Three answers, so chance is one third. {len(study.arms)} arms of the same size are trained, one "
            "seed each, so that no comparison is made: that is what `meq study run main` is for.",
            highlight=False,
        )
        run_study(study, out, console=Console(stderr=True))
        drawn = out.with_name(f"{out.name}-scenes.png")
        scenes = open_data("scenes")
        save_sheet(scenes, list(scenes.splits["train"][:12]), drawn)
        run = out / run_place(study.reference, study.seeds[0])
        with Bars(Console(stderr=True), shown=True) as bars:
            found = analyze_run(load_run(run), looking=Looking(split="test"), reading=Reading(progress=bars))
        report = _report(out)
        print(tables_text(study, out, names=SHOWN))
        print(found.diagnosis.page)
        print(f"\nthe data, drawn: {drawn}\nthe model: {run}\nthe report: {report.resolve()}\nnext: meq app {run}")


def _report(folder: Path) -> Path:
    from meq.experiments.runs.reported import look_for_report  # slow to import, as the figures are
    from meq.viz.report import write_report

    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="meq-report-") as scratch, Bars(console, shown=True) as bars:
        looks, missing = look_for_report(folder, scratch=Path(scratch), progress=bars)
        for each in missing:
            console.print(each, highlight=False, markup=False, soft_wrap=True)
        return write_report(folder, looks=looks)
