"""write_report: from the folder of a run or a study to one HTML file."""

from __future__ import annotations

from pathlib import Path

from meq.core.options import checked_options
from meq.data.request import nearest_beside
from meq.experiments.runs.files import open_run_files
from meq.experiments.study import STUDY, StudyError
from meq.viz.report.page import make_page
from meq.viz.report.run_page import fitting_showcase, run_lead, run_sections, run_title
from meq.viz.report.study_page import study_page
from meq.viz.style import write_whole

FOOTER = "Made by meq from the files of the folder {name}. This file holds everything it shows and asks for nothing."


@checked_options
def write_report(folder: Path | str, out: Path | str | None = None, *, looks: Path | None = None) -> Path:
    """Write the report of a run's or a study's folder; where it was written.

    It is made from what lies on disk: of what `prepare_showcase` of `meq.experiments.runs` computes, that which is in
    the run's own folder, or below `looks` at the same place. Unless told otherwise the file stands beside the folder,
    whose own files are sealed.
    """
    folder = Path(folder)
    place = check_report(folder, out)
    page = _study(folder, looks) if is_study(folder) else _run(folder, looks)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, page.encode())
    return place


def default_place(folder: Path | str) -> Path:
    """FOLDER-report.html, beside the folder."""
    whole = Path(folder).resolve()
    return whole.with_name(f"{whole.name}-report.html")


def is_study(folder: Path) -> bool:
    return (folder / STUDY).is_file()


def _run(folder: Path, looks: Path | None) -> str:
    files = open_run_files(folder)
    showcase = fitting_showcase(files, looks or files.folder)
    return make_page(
        f"Report: {run_title(files)}",
        run_lead(files, showcase),
        run_sections(files, showcase),
        footer=FOOTER.format(name=files.folder.resolve().name),
    )


def _study(folder: Path, looks: Path | None) -> str:
    return study_page(folder, looks, footer=FOOTER.format(name=folder.resolve().name))


def check_report(folder: Path | str, out: Path | str | None = None) -> Path:
    """Where the report of that folder is written; an error if it is no folder of a run or a study, or cannot be there.

    Worth asking before anything is computed.
    """
    folder = Path(folder)
    if not folder.exists():
        raise StudyError(f"{folder} is not the folder of a run or a study: it is not there{nearest_beside(folder)}")
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
