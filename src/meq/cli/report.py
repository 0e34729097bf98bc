"""meq report: what a colleague can read of a run or a study, in one file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from meq.cli.asking import Debug
from meq.cli.bars import Bars
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_file, check_there
from meq.errors import require


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a study.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; FOLDER-report.html beside the folder unless given.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="The folder of the data, where it has moved; for a study on a table, the table.")
    ] = None,
    only_files: Annotated[
        bool, typer.Option(help="Load no model: leave out examples, diagnosis and the score along k.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Write one HTML file on a run or a study, to be read without meq: what was run, tables, figures, examples."""
    with errors_in_words(debug):
        require("matplotlib", "a report")
        if root is not None:
            check_there(root, "file or folder")
        from meq.experiments.runs.reported import look_for_report  # slow to import, as the figures are
        from meq.viz.report import check_report, write_report

        check_file(check_report(folder, out), "--out")
        console = Console(stderr=True)
        with tempfile.TemporaryDirectory(prefix="meq-report-") as scratch, Bars(console, shown=True) as bars:
            looks = None
            if not only_files:
                looks, missing = look_for_report(folder, scratch=Path(scratch), root=root, progress=bars)
                for each in missing:
                    console.print(each, highlight=False, markup=False, soft_wrap=True)
            place = write_report(folder, out, looks=looks)
        size = os.path.getsize(place) / 1e6
        print(f"report: {place} ({size:.1f} MB)")
