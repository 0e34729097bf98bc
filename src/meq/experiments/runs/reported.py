"""Which run a report looks at in detail, and where what is seen there is kept."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from meq.encoders.survey import Progress
from meq.experiments.compare import Records
from meq.experiments.runs.files import open_run_files
from meq.experiments.runs.raw import study_above
from meq.experiments.runs.showcase import Showing, prepare_showcase
from meq.experiments.study import STUDY, Study, read_study, run_place
from meq.experiments.tables import records_of
from meq.files import BusyError, alone
from meq.training.place import busy


def best_run(folder: Path, study: Study, records: Records) -> tuple[str, int] | None:
    """The run of the reference arm that did best on dev, of those whose weights are there."""
    known = {
        run: record.selected.value
        for run, record in records.items()
        if run[0] == study.reference and record.scored and record.selected.value is not None
    }
    there = {run: value for run, value in known.items() if open_run_files(folder / run_place(*run)).has_weights}
    return max(there, key=lambda run: there[run]) if there else None


def look_for_report(
    folder: Path | str,
    *,
    scratch: Path,
    root: Path | None = None,
    showing: Showing = Showing(),  # noqa: B008
    progress: Progress | None = None,
) -> tuple[Path | None, tuple[str, ...]]:
    """Look at the run, or at the best run of a study's reference arm: where that is kept, and what is missing.

    It is kept in the run's own folder. A study's folder is sealed, and other processes may be writing to it: there, and
    where the run's folder cannot be written to, it is kept below `scratch`. None: nothing can be looked at.
    """
    folder = Path(folder)
    if (folder / STUDY).is_file():
        study = read_study(folder)
        run = best_run(folder, study, records_of(folder, study))
        if run is None:
            return None, ()
        place = run_place(*run)
        found = prepare_showcase(folder / place, into=scratch / place, root=root, showing=showing, progress=progress)
        return scratch, found.missing
    files = open_run_files(folder)
    if not files.has_weights or files.reported_split is None:
        return None, ()
    into = files.folder if os.access(files.folder, os.W_OK) and study_above(files.folder) is None else scratch
    with ExitStack() as stack:
        try:
            stack.enter_context(alone(files.folder, busy(files.folder)))
        except BusyError:  # it is being trained again: only who trains writes there
            into = scratch
        return into, prepare_showcase(files.folder, into=into, root=root, showing=showing, progress=progress).missing
