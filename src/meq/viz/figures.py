"""Figures of a run or a study, by name. The report shows all of them, and `draw_figure` draws one.

A new figure is a function in a file of its own and a line below: it is then in every report, in the place that the line
names, and can be drawn by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from meq.options import nearest
from meq.registry import Registry
from meq.studies.build import Places
from meq.studies.study import STUDY, is_paper
from meq.studies.whole_paper import places_of_parts
from meq.viz import paper_figures, run_figures, staircase, study_figures, trust
from meq.viz.run_figures import ReportedRun, open_reported_run
from meq.viz.study_figures import ReportedStudy, open_reported_study
from meq.viz.style import Drawing, save

Source = TypeVar("Source")
Draw = Callable[[Source], Sequence[Drawing]]
PLACES = (
    *("comparison", "steps", "grounding", "examples", "influence", "eigenvalues", "training"),
    *("reliability", "importance"),
)
"""Where the templates of the report show drawings: "comparison" and "grounding" of a study, "examples", "influence",
"eigenvalues", "reliability" and "importance" of a run, "steps" and "training" of either."""


@dataclass(frozen=True, kw_only=True)
class FigureEntry(Generic[Source]):
    """A figure that can be drawn by name."""

    place: str
    """Where it stands in the report: one of `PLACES`."""
    draw: Draw[Source]
    """Draws it from the files of a run or a study; an empty list where they lack what it shows."""

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise ValueError(f"a report has no place {self.place!r}: {nearest(self.place, PLACES)}")


RUN_FIGURES: Registry[FigureEntry[ReportedRun]] = Registry(
    "figure of a run",
    {
        "score-along-k": FigureEntry(place="steps", draw=run_figures.score_by_step),
        "residual-along-k": FigureEntry(place="steps", draw=run_figures.residual_by_step),
        "examples": FigureEntry(place="examples", draw=run_figures.example_grids),
        "influence": FigureEntry(place="influence", draw=run_figures.influence),
        "eigenvalues": FigureEntry(place="eigenvalues", draw=run_figures.eigenvalues),
        "training": FigureEntry(place="training", draw=run_figures.training),
        "reliability": FigureEntry(place="reliability", draw=trust.reliability_diagram),
        "importance": FigureEntry(place="importance", draw=trust.importance_bars),
    },
)
STUDY_FIGURES: Registry[FigureEntry[ReportedStudy]] = Registry(
    "figure of a study",
    {
        "arms": FigureEntry(place="comparison", draw=study_figures.arms),
        "score-along-k": FigureEntry(place="steps", draw=study_figures.score_by_step),
        "residual-along-k": FigureEntry(place="steps", draw=study_figures.residual_by_step),
        "staircase": FigureEntry(place="steps", draw=staircase.staircases),
        "steps-by-depth": FigureEntry(place="steps", draw=staircase.steps_by_depth),
        "trail": FigureEntry(place="steps", draw=staircase.trail),
        "grounding": FigureEntry(place="grounding", draw=study_figures.grounding),
        "probability-along-k": FigureEntry(place="grounding", draw=paper_figures.probability_by_step),
        "accuracy-along-k": FigureEntry(place="grounding", draw=paper_figures.accuracy_by_step),
        "architecture": FigureEntry(place="training", draw=paper_figures.architecture),
        "training": FigureEntry(place="training", draw=study_figures.training),
    },
)


def _registering(figures: Registry[FigureEntry[Source]]) -> Callable[..., Callable[[Draw[Source]], Draw[Source]]]:
    """A decorator for a function that draws a figure: it is in every report, at that place, and has this name."""

    def register(name: str, *, place: str) -> Callable[[Draw[Source]], Draw[Source]]:
        def decorate(draw: Draw[Source]) -> Draw[Source]:
            figures.add(name, FigureEntry(place=place, draw=draw))
            return draw

        return decorate

    return register


register_run_figure = _registering(RUN_FIGURES)
register_study_figure = _registering(STUDY_FIGURES)


def drawings_of(figures: Registry[FigureEntry[Source]], source: Source) -> dict[str, list[Drawing]]:
    """All that can be drawn, by the place in the report."""
    found: dict[str, list[Drawing]] = {place: [] for place in PLACES}
    for entry in map(figures.get, figures):
        found[entry.place] += entry.draw(source)
    return found


def check_figure(folder: Path | str, name: str) -> None:
    """An error that names the nearest one, if a run or a study, whichever lies there, has no such figure."""
    (STUDY_FIGURES if is_study(folder) else RUN_FIGURES).get(name)


def draw_figure(folder: Path | str, name: str, out: Path | str, *, looks: Path | None = None) -> list[Path]:
    """Draw a figure of a run's or a study's folder into the folder `out`, as NAME.png and NAME.svg; the files.

    Where there are several, such as one for each kind of examples, they are numbered. `looks` is where the run was
    looked at, if not in its own folder.
    """
    if is_study(folder):
        drawings = STUDY_FIGURES.get(name).draw(open_reported_study(Path(folder)))
    else:
        drawings = RUN_FIGURES.get(name).draw(open_reported_run(Path(folder), looks))
    if not drawings:
        raise ValueError(f"{folder} has nothing to draw as {name!r}: `meq report {folder}` says what is missing")
    stems = [name] if len(drawings) == 1 else [f"{name}-{number}" for number in range(1, len(drawings) + 1)]
    return [file for stem, each in zip(stems, drawings, strict=True) for file in save(each.figure, Path(out) / stem)]


def draw_all(folder: Path, out: Path, *, places: Places | None = None, roots: Path | None = None) -> list[Path]:
    """Every figure that a study has something for, into the folder `out`; of the whole paper, those of its studies.

    `places`, or for the whole paper the file `roots`, say where data lies: maps are then drawn over its pictures.
    """
    if is_paper(folder):
        known = places_of_parts(folder, roots)
        return [file for part, place in known.items() for file in draw_all(folder / part, out / part, places=place)]
    source = open_reported_study(folder, places)
    made = []
    for name in STUDY_FIGURES:
        drawings = STUDY_FIGURES.get(name).draw(source)
        stems = [name] if len(drawings) == 1 else [f"{name}-{number}" for number in range(1, len(drawings) + 1)]
        made += [file for stem, each in zip(stems, drawings, strict=True) for file in save(each.figure, out / stem)]
    return made


def is_study(folder: Path | str) -> bool:
    """Is it the folder of a study, and not of a run?"""
    return (Path(folder) / STUDY).is_file()
