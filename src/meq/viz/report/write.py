"""write_report: from the folder of a run or a study to one HTML file."""

from __future__ import annotations

from pathlib import Path

from meq.data.request import nearest_beside
from meq.options import checked_options
from meq.records import write_bytes
from meq.runs.run_files import open_run_files
from meq.studies.study import StudyError, is_paper
from meq.studies.whole_paper import read_paper
from meq.viz.figures import is_study
from meq.viz.report.document import Section, make_page
from meq.viz.report.run import run_context, run_sections, run_title
from meq.viz.report.study import study_context, study_sections
from meq.viz.run_figures import open_reported_run
from meq.viz.study_figures import open_reported_study


@checked_options
def write_report(folder: Path | str, out: Path | str | None = None, *, looks: Path | None = None) -> Path:
    """Write the report of a run's or a study's folder; where it was written.

    It is made from what lies on disk: of what `prepare_showcase` of `meq.runs` computes, that which is in
    the run's own folder, or below `looks` at the same place. Unless told otherwise the file stands beside the folder,
    whose own files are sealed.
    """
    folder = Path(folder)
    place = check_report(folder, out)
    if is_study(folder):
        found = open_reported_study(folder)
        context = study_context(found)
        title, template, sections = f"Study: {found.study.name}", "study.html", study_sections(context, found, looks)
    else:
        run = open_reported_run(folder, looks)
        context = run_context(run)
        title, template, sections = f"Report: {run_title(run.files)}", "run.html", run_sections(context)
        folder = run.files.folder
    lead = Section(title=title, template=template, macro="lead", context=context)
    page = make_page(lead, sections, folder=folder.resolve().name)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place, page.encode())
    return place


def default_place(folder: Path | str, ending: str = "-report.html") -> Path:
    """FOLDER-report.html, beside the folder; for what goes with it, another ending."""
    whole = Path(folder).resolve()
    return whole.with_name(f"{whole.name}{ending}")


def check_report(folder: Path | str, out: Path | str | None = None) -> Path:
    """Where the report of that folder is written; an error if it is no folder of a run or a study, or cannot be there.

    Worth asking before anything is computed.
    """
    folder = Path(folder)
    if not folder.exists():
        raise StudyError(f"{folder} is not the folder of a run or a study: it is not there{nearest_beside(folder)}")
    if is_paper(folder):
        one = folder / read_paper(folder).parts[0].folder
        raise StudyError(f"{folder} holds the whole paper, and a report is of one of its studies, such as {one}")
    if not is_study(folder):
        open_run_files(folder)
    place = Path(out) if out is not None else default_place(folder)
    if place.is_dir():
        raise StudyError(f"{place} is a folder: name a file for the report, such as {place / 'report.html'}")
    if is_study(folder) and place.resolve().is_relative_to(folder.resolve()):
        raise StudyError(
            f"{place} lies in the study's folder, whose files are sealed: a report there would be a file that nobody "
            "vouches for. Write it elsewhere"
        )
    return place
