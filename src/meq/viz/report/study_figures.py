"""Figures of a study: arms with their spread, scores along k, training of every arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from meq.experiments.compare import ArmLine, Records
from meq.experiments.measures.contract import Values
from meq.experiments.measures.summary import arms_in, by_seed
from meq.experiments.study import Study
from meq.viz.arms import arms_figure
from meq.viz.colours import INK, PALETTE, VERMILION
from meq.viz.curves import Line, residual_along_k, score_along_k
from meq.viz.grounding import grounding_grid
from meq.viz.report.markup import Html
from meq.viz.report.pictures import drawing, photograph
from meq.viz.style import MOST_OF_NAME, new_figure, plain, styled

ACROSS = 3
MOST_LINES = len(PALETTE)
ALL = "all"
"""The group of all examples in the measure `steps`."""


def arms(lines: Sequence[ArmLine], *, metric: str, split: str, chance: float | None) -> Html:
    """Means and spread, filled where the difference to the reference is called."""
    known = [line for line in lines if line.mean is not None]
    words = "; ".join(f"{line.arm} {line.mean:.4g}, {line.verdict}" for line in known)
    return drawing(
        arms_figure(lines, metric=metric, split=split, chance=chance),
        alt=f"Mean {metric} on {split} by arm: {words}.",
        caption=f"By {metric} on {split}: a point is the mean over seeds, the bar one sample standard deviation "
        "to either side. Filled: the reference, and differences that are called. At the right: difference to the "
        "reference, its spread, runs.",
    )


def scores_along_k(study: Study, values: Values, *, chance: float | None) -> list[Html]:
    """The arms in one figure, and for each that knows kinds of examples one by kind."""
    walked = [arm for arm in arms_in(study, values) if "steps" in by_seed(study, values, arm)[0]]
    if not walked:
        return []
    made = [
        _score_figure(study, values, {arm: (arm, ALL) for arm in some}, "All arms that iterate", chance)
        for some in _portions(walked)
    ]
    for arm in walked:
        kinds = [name for name in by_seed(study, values, arm)[0]["score"] if name != ALL]
        if kinds:
            made.append(_score_figure(study, values, {kind: (arm, kind) for kind in kinds}, f"{arm}, by kind", chance))
    return made


def looks_along_k(study: Study, values: Values) -> list[Html]:
    """The maps that were kept of the first seed there is, one grid for each method."""
    arm, seed = next(run for run in study.runs() if run in values)
    found = values[arm, seed]
    methods = [name for name in found["grounding"] if any(name in each["maps"] for each in found["examples"])]
    return [
        photograph(
            grounding_grid(found, method=method),
            alt=f"Maps of {method} over the places of the tokens, a column per step.",
            caption=f"{arm}, seed {seed}, {method} of the entailment score. Dotted: what the statement speaks of. "
            "Border and words below: the answer at that step.",
        )
        for method in methods
    ]


def residuals(study: Study, values: Values, arm: str) -> Html | None:
    """Residuals of one arm along k, the seeds as a band."""
    found = by_seed(study, values, arm)
    if not found or "steps" not in found[0]:
        return None
    names = list(found[0]["residual"])
    stacked = {name: torch.tensor([each["residual"][name] for each in found], dtype=torch.float64).T for name in names}
    return drawing(
        residual_along_k(stacked, found[0]["steps"], read=found[0]["read"]),
        alt=f"Residual of {arm} along k for {', '.join(names)}, over {len(found)} seeds.",
        caption=f"{arm}: residual |z - T(z)| / |z| of the undamped map, median over examples; {len(found)} seeds.",
    )


def training_of_arms(study: Study, records: Records) -> Html:
    """The score on dev while training, a panel per arm and a line per seed."""
    alarms = sum(len(record.alarms) for record in records.values())
    return drawing(
        _multiples(study, records),
        alt=f"Score on dev over epochs for {len(study.arms)} arms and {len(study.seeds)} seeds; {alarms} alarms.",
        caption="While training: the score on dev by epoch, one line per seed, all panels on one scale. Circles: the "
        "epoch whose weights were kept." + (" Red lines: alarms." if alarms else ""),
    )


def _score_figure(
    study: Study, values: Values, lines: Mapping[str, tuple[str, str]], title: str, chance: float | None
) -> Html:
    made, reads, metric, split = [], set(), "score", ""
    for name, (arm, group) in lines.items():
        found = by_seed(study, values, arm)
        rows = tuple(tuple(map(float, each["score"][group])) for each in found)
        made.append(Line(name=name, steps=tuple(found[0]["steps"]), values=rows))
        reads |= {each["read"] for each in found}
        metric, split = str(found[0]["metric"]), str(found[0]["split"])
    read = reads.pop() if len(reads) == 1 else None
    words = "; ".join(f"{line.name}: {_ends(line)}" for line in made)
    return drawing(
        score_along_k(made, read=read, chance=chance, metric=metric),
        alt=f"{title}: {metric} on {split} read at step k, mean over seeds. {words}.",
        caption=f"{title}: {metric} on {split} when the same weights are read at step k.",
    )


def _ends(line: Line) -> str:
    first, last = (sum(row[at] for row in line.values) / len(line.values) for at in (0, -1))
    return f"{first:.3g} at k = {line.steps[0]}, {last:.3g} at k = {line.steps[-1]}"


def _multiples(study: Study, records: Records) -> Figure:
    rows = math.ceil(len(study.arms) / ACROSS)
    metric = next((record.metric for record in records.values()), "score")
    with styled():
        figure = new_figure(8.6, 2.0 * rows + 0.6)
        grid = figure.subplots(rows, ACROSS, sharex=True, sharey=True, squeeze=False)
        for axes, arm in zip(grid.flat, study.arms, strict=False):
            _panel(axes, arm.name, study, records)
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


def _panel(axes: Axes, arm: str, study: Study, records: Records) -> None:
    axes.set_title(plain(arm, MOST_OF_NAME), fontsize=8.5)
    axes.tick_params(labelbottom=True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    for place, seed in enumerate(study.seeds):
        record = records.get((arm, seed))
        if record is None:
            continue
        known = [(row["epoch"], row[record.metric]) for row in record.curves if row.get(record.metric) is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], color=PALETTE[place % len(PALETTE)], linewidth=1.3)
        if record.selected.epoch is not None and record.selected.value is not None:
            axes.plot(
                [record.selected.epoch], [record.selected.value], marker="o", markersize=6, markerfacecolor="none",
                markeredgecolor=INK, linestyle="",
            )  # fmt: skip
        for alarm in record.alarms:
            axes.axvline(alarm["epoch"], color=VERMILION, linewidth=1.0, alpha=0.8, zorder=1)


def _portions(names: Sequence[str]) -> list[Sequence[str]]:
    """As many at a time as there are colours."""
    return [names[start : start + MOST_LINES] for start in range(0, len(names), MOST_LINES)]
