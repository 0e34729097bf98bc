"""The figures of a study, from its files: arms side by side, scores along the iteration, training of every arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import meq.viz.needs  # noqa: F401

# isort: split
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from meq.data.content import Picture
from meq.data.request import DATA_SETS
from meq.options import checked_options
from meq.runs.run_files import open_run_files
from meq.studies.build import Places
from meq.studies.compare import CALLED, REFERENCE, ArmLine, Records, compare, compare_groups, scored_pairs
from meq.studies.measures import measured_of
from meq.studies.measures.contract import Values, by_arm
from meq.studies.measures.gallery import pictures_named
from meq.studies.study import Run, Study, read_study, run_place
from meq.studies.tables import records_of
from meq.viz.colours import BLUE, FAINT, INK, LOST, PALETTE
from meq.viz.curves import Line, epochs_of, mark_alarms, mark_kept, residual_along_k, score_along_k
from meq.viz.grid import grounding_grid
from meq.viz.run_figures import chance_of
from meq.viz.style import MOST_OF_NAME, Drawing, new_figure, plain, styled

ROW = 0.42
"""Inches per arm."""
ACROSS = 3
"""Panels in a row."""
ALL = "all"
"""The group of all examples in the measure `steps`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportedStudy:
    """A study as it lies on disk."""

    folder: Path
    study: Study
    records: Records
    measured: Mapping[str, Values]
    places: Places = field(default_factory=Places)
    """Where its data lies, as far as that is known: nothing but pictures below maps is taken from there."""

    @cached_property
    def pictures(self) -> dict[str, Picture]:
        """By name: those that maps were kept of. None where the data is not there: records can do without them."""
        first = first_of(self, "grounding")
        read = self.study.measures.get("grounding", {}).get("read")
        known = DATA_SETS.get(self.study.data.name) if self.study.data.name in DATA_SETS else None
        if first is None or (read is None and self.places.data is None and not (known and known.embedded)):
            return {}
        kept = first[1]
        names = [example["picture"] for example in kept["examples"]]
        return pictures_named(names, self.study.data, self.places, read=read, split=kept["split"])

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Splits and metrics that runs were scored by; first test where it is labelled, else dev, and what weights are
        selected by."""
        known = scored_pairs(self.records.values())
        metric = next((record.metric for record in self.records.values()), "")
        main = next((pair for pair in [("test", metric), ("dev", metric), *known] if pair in known), None)
        return [] if main is None else [main, *(pair for pair in known if pair != main)]

    def lines(self, split: str, metric: str) -> list[ArmLine]:
        """Every arm and group of arms, compared with the reference."""
        found = compare(self.study, self.records, split=split, metric=metric)
        return [*found, *compare_groups(self.study, self.records, split=split, metric=metric)]

    @property
    def chance(self) -> float | None:
        """The accuracy of a random guess, where all runs answer with one of several classes."""
        scored = (run for run, record in self.records.items() if record.scored)
        return next((chance_of(open_run_files(self.folder / run_place(*run))) for run in scored), None)


def open_reported_study(folder: Path, places: Places | None = None) -> ReportedStudy:
    study = read_study(folder)
    return ReportedStudy(
        folder=folder,
        study=study,
        records=records_of(folder, study),
        measured=measured_of(folder, study),
        places=places or Places(),
    )


def first_of(found: ReportedStudy, measure: str) -> tuple[Run, Mapping[str, Any]] | None:
    """The first run that has this measure, and what it found there."""
    values = found.measured.get(measure, {})
    run = next((run for run in found.study.runs() if run in values), None)
    return None if run is None else (run, values[run])


def arms(found: ReportedStudy) -> list[Drawing]:
    """A figure for every metric: means and spread, filled where the difference to the reference is called."""
    made = []
    for split, metric in found.pairs:
        lines, chance = found.lines(split, metric), found.chance if metric == "accuracy" else None
        words = "; ".join(f"{line.arm} {line.mean:.4g}, {line.verdict}" for line in lines if line.mean is not None)
        made.append(
            Drawing(
                figure=arms_figure(lines, metric=metric, split=split, chance=chance),
                alt=f"Mean {metric} on {split} by arm: {words}.",
                caption=f"By {metric} on {split}: a point is the mean over seeds, the bar one sample standard "
                "deviation to either side. Filled: the reference, and differences that are called. At the right: "
                "difference to the reference, its spread, runs.",
            )
        )
    return made


def score_by_step(found: ReportedStudy) -> list[Drawing]:
    """The arms in one figure, and for each that knows kinds of examples one by kind."""
    taken = by_arm(found.study, found.measured.get("steps", {}))
    walked = [arm for arm, seeds in taken.items() if "steps" in seeds[0]]
    made = []
    for start in range(0, len(walked), len(PALETTE)):  # as many at a time as there are colours
        lines = {arm: (arm, ALL) for arm in walked[start : start + len(PALETTE)]}
        made.append(_scores(found, lines, "All arms that iterate"))
    for arm in walked:
        kinds = [name for name in taken[arm][0]["score"] if name != ALL]
        if kinds:
            made.append(_scores(found, {kind: (arm, kind) for kind in kinds}, f"{arm}, by kind"))
    return made


def residual_by_step(found: ReportedStudy) -> list[Drawing]:
    """Residuals of the reference along k, the seeds as a band."""
    arm = found.study.reference
    seeds = by_arm(found.study, found.measured.get("steps", {})).get(arm, [])
    if not seeds or "steps" not in seeds[0]:
        return []
    names = list(seeds[0]["residual"])
    stacked = {name: torch.tensor([each["residual"][name] for each in seeds], dtype=torch.float64).T for name in names}
    return [
        Drawing(
            figure=residual_along_k(stacked, seeds[0]["steps"], read=seeds[0]["read"]),
            alt=f"Residual of {arm} along k for {', '.join(names)}, over {len(seeds)} seeds.",
            caption=f"{arm}: residual |z - T(z)| / |z| of the undamped map, median over examples; {len(seeds)} seeds.",
        )
    ]


def grounding(found: ReportedStudy) -> list[Drawing]:
    """The maps that were kept of the first seed there is, one grid for each method."""
    first = first_of(found, "grounding")
    if first is None:
        return []
    (arm, seed), kept = first
    pictures = {name: picture.open() for name, picture in found.pictures.items()}
    alone = "" if pictures else " Where the data lies was not said: the maps stand without the pictures."
    methods = [name for name in kept["grounding"] if any(name in each["maps"] for each in kept["examples"])]
    return [
        Drawing(
            figure=grounding_grid(kept, method=method, pictures=pictures),
            alt=f"Maps of {method} over {'the pictures' if pictures else 'the places of the tokens'}, a column per "
            "step.",
            caption=f"{arm}, seed {seed}, {method} of the entailment score. Dotted: what the statement speaks of. "
            f"Border and words below: the answer at that step.{alone}",
            photograph=True,
        )
        for method in methods
    ]


def training(found: ReportedStudy) -> list[Drawing]:
    """The score on dev while training, a panel per arm and a line per seed."""
    study = found.study
    records = {run: record for run, record in found.records.items() if record.curves}
    if not records:
        return []
    alarms = sum(len(record.alarms) for record in records.values())
    return [
        Drawing(
            figure=_training_panels(study, records),
            alt=f"Score on dev over epochs for {len(study.arms)} arms and {len(study.seeds)} seeds; {alarms} alarms.",
            caption="While training: the score on dev by epoch, one line per seed, all panels on one scale. Circles: "
            "the epoch whose weights were kept." + (" Red lines: alarms." if alarms else ""),
        )
    ]


@checked_options
def arms_figure(
    lines: Sequence[ArmLine], *, metric: str, split: str, chance: float | None = None, title: str = ""
) -> Figure:
    """A point per arm, its sample standard deviation over seeds as a bar, and the verdict at the right.

    Filled: the reference and arms whose difference to it is called; hollow: all others.
    """
    if not lines:
        raise ValueError("there are no arms to draw")
    with styled():
        figure = new_figure(7.6, ROW * len(lines) + 1.5)
        axes = figure.add_subplot()
        for place, line in enumerate(lines):
            _draw_arm(axes, line, place)
        if chance is not None:
            axes.axvline(chance, color=LOST, linewidth=1.0, linestyle=":", label=f"chance, {chance:.3g}")
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
        axes.set_yticks(range(len(lines)), [plain(line.arm, MOST_OF_NAME) for line in lines])
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.margins(x=0.08)
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{plain(metric)} on {plain(split)}: mean and standard deviation over seeds")
        axes.set_title(plain(title or f"Arms compared by {metric}"), pad=20 if chance is not None else 10)
    return figure


def _draw_arm(axes: Axes, line: ArmLine, place: int) -> None:
    filled = line.verdict in (CALLED, REFERENCE)
    colour = INK if line.verdict == REFERENCE else BLUE
    if line.mean is not None and math.isfinite(line.mean):
        spread = line.spread if line.spread is not None and math.isfinite(line.spread) else None
        axes.errorbar(
            line.mean, place, xerr=spread, fmt="o", color=colour, capsize=3, markersize=6.5,
            markerfacecolor=colour if filled else "white", markeredgewidth=1.4,
        )  # fmt: skip
    # "+0.021 ± 0.004, called; 3 of 3": the paired difference to the reference, with its spread
    words = f"{line.verdict}; {line.runs}"
    if line.difference is not None:
        spread_words = "" if line.difference_spread is None else f" ± {line.difference_spread:.3g}"
        words = f"{line.difference:+.3f}{spread_words}, {words}"
    axes.annotate(
        plain(words), (1, place), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points",
        va="center", ha="left", fontsize=8, color=INK if filled else FAINT,
    )  # fmt: skip


def _scores(found: ReportedStudy, lines: Mapping[str, tuple[str, str]], title: str) -> Drawing:
    """The scores along k; `lines` gives for each line's name an arm and a group of examples."""
    made, reads, metric, split = [], set(), "score", ""
    for name, (arm, group) in lines.items():
        seeds = by_arm(found.study, found.measured["steps"])[arm]
        rows = tuple(tuple(map(float, each["score"][group])) for each in seeds)
        made.append(Line(name=name, steps=tuple(seeds[0]["steps"]), values=rows))
        reads |= {each["read"] for each in seeds}
        metric, split = str(seeds[0]["metric"]), str(seeds[0]["split"])
    words = []
    for line in made:
        first, last = (sum(row[at] for row in line.values) / len(line.values) for at in (0, -1))
        words.append(f"{line.name}: {first:.3g} at k = {line.steps[0]}, {last:.3g} at k = {line.steps[-1]}")
    read = reads.pop() if len(reads) == 1 else None
    return Drawing(
        figure=score_along_k(made, read=read, chance=found.chance, metric=metric),
        alt=f"{title}: {metric} on {split} read at step k, mean over seeds. {'; '.join(words)}.",
        caption=f"{title}: {metric} on {split} when the same weights are read at step k.",
    )


def _training_panels(study: Study, records: Records) -> Figure:
    rows = math.ceil(len(study.arms) / ACROSS)
    metric = next((record.metric for record in records.values()), "score")
    with styled():
        figure = new_figure(8.6, 2.0 * rows + 0.6)
        grid = figure.subplots(rows, ACROSS, sharex=True, sharey=True, squeeze=False)
        for axes, arm in zip(grid.flat, study.arms, strict=False):
            _draw_training(axes, arm.name, study, records)
        for axes in grid.flat[len(study.arms) :]:
            axes.set_visible(False)
        there = {
            f"seed {seed}": Line2D([], [], color=PALETTE[place % len(PALETTE)])
            for place, seed in enumerate(study.seeds)
            if any(known == seed for _, known in records)
        }
        figure.legend(list(there.values()), list(there), loc="outside upper right", ncols=min(len(there), 6))
        figure.supxlabel("epoch", fontsize=9)
        figure.supylabel(f"{plain(metric)} on dev", fontsize=9)
    return figure


def _draw_training(axes: Axes, arm: str, study: Study, records: Records) -> None:
    axes.set_title(plain(arm, MOST_OF_NAME), fontsize=8.5)
    axes.tick_params(labelbottom=True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    for place, seed in enumerate(study.seeds):
        record = records.get((arm, seed))
        if record is None:
            continue
        scores = epochs_of(record.curves, record.metric)
        axes.plot(list(scores), list(scores.values()), color=PALETTE[place % len(PALETTE)], linewidth=1.3)
        mark_kept(axes, record, size=6)
        mark_alarms(axes, record)
