"""Curves along the iteration: scores, probabilities, residuals; K is marked, spread is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from meq.analysis.trajectory import Trajectory
from meq.core.options import checked_options, nearest
from meq.experiments.runs.explanation import Contrast, Explanation
from meq.viz.colours import FAINT, LOST, PALETTE, label_colours
from meq.viz.style import MOST_OF_NAME, mark_read, new_figure, plain, styled, whole_decades, whole_steps

MARKERS = "osD^vP*X"
MOST_CLASSES = 6
"""Curves of a figure with thousands of classes: those that the model considers most at K."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm, or one kind of question: a score per measured step, for every seed."""

    name: str
    steps: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    """A row per seed."""

    def __post_init__(self) -> None:
        if not self.values or any(len(row) != len(self.steps) for row in self.values):
            raise ValueError(f"{self.name!r}: every seed needs a value for each of {len(self.steps)} steps")


def line_of(name: str, trajectories: Sequence[Trajectory]) -> Line:
    """The scores of the same steps, one trajectory per seed."""
    steps = {each.steps for each in trajectories}
    if len(steps) != 1:
        raise ValueError(f"{name!r}: a line needs trajectories of the same steps, got {len(steps)} kinds")
    missing = [place for place, each in enumerate(trajectories) if each.metric is None]
    if missing:
        raise ValueError(f"{name!r}: trajectory {missing[0]} has no score: its batches had no targets")
    values = tuple(tuple(each.metric.tolist()) for each in trajectories if each.metric is not None)
    return Line(name=name, steps=steps.pop(), values=values)


@checked_options
def score_along_k(
    lines: Sequence[Line], *, read: int | None = None, chance: float | None = None, metric: str = "accuracy"
) -> Figure:
    """A score read at every step: means over seeds, and as a band one sample standard deviation to either side."""
    if not lines:
        raise ValueError("there are no lines to draw")
    with styled():
        figure = new_figure(6.4, 3.8)
        axes = figure.add_subplot()
        for place, line in enumerate(lines):
            _line_with_band(axes, line, place)
        _score_axis(axes, lines, metric, chance)
        if read is not None:
            mark_read(axes, read)
        whole_steps(axes)
        axes.set_title(f"{plain(metric[:1].upper() + metric[1:])} when the answer is read at step k", pad=16)
        axes.legend(loc="lower right", title=_spread_note(lines), title_fontsize=8)
    return figure


@checked_options
def probability_along_k(found: Explanation | Contrast, *, label: str | None = None) -> Figure:
    """P(class) along k. Of a contrast: one class, solid as it is and dotted with the other content."""
    with styled():
        figure = new_figure(6.4, 3.6)
        axes = figure.add_subplot()
        if isinstance(found, Contrast):
            first = found.matched
            _contrast_curves(axes, found, label or first.answer)
        else:
            first = found
            _class_curves(axes, found, [label] if label is not None else _considered(found))
        axes.set_ylim(-0.02, 1.02)
        axes.set_ylabel("probability")
        mark_read(axes, first.read)
        whole_steps(axes)
        figure.legend(loc="outside lower center", ncols=3)
    return figure


@checked_options
def residual_along_k(
    residuals: Mapping[str, Tensor], steps: Sequence[int], *, read: int | None = None, tol: float | None = None
) -> Figure:
    """Residuals of the undamped map by modality (S, or S by samples), logarithmic; medians, and quartiles as a band."""
    with styled():
        figure = new_figure(6.4, 3.6)
        axes = figure.add_subplot()
        several, drawn = False, [] if tol is None else [tol]
        for place, (name, values) in enumerate(residuals.items()):
            rows = values.double().reshape(len(steps), -1).where(values.reshape(len(steps), -1) > 0, torch.nan)
            low, middle, high = (torch.nanquantile(rows, share, dim=1).numpy() for share in (0.25, 0.5, 0.75))
            colour = PALETTE[place % len(PALETTE)]
            if rows.shape[1] > 1:
                several = True
                drawn += [*low.tolist(), *high.tolist()]
                axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
            drawn += middle.tolist()
            axes.plot(
                steps, middle, color=colour, marker=MARKERS[place % len(MARKERS)], label=plain(name, MOST_OF_NAME)
            )
        if tol is not None:
            axes.axhline(tol, color=FAINT, linewidth=1.0, linestyle=":", label=f"tolerance {tol:g}")
        if read is not None:
            mark_read(axes, read)
        whole_decades(axes, drawn)
        whole_steps(axes)
        axes.set_ylabel("|z - T(z)| / |z|")
        axes.set_title("Residual of the undamped map" + (", median and quartiles" if several else ""), pad=16)
        axes.legend(loc="best")
    return figure


def _line_with_band(axes: Axes, line: Line, place: int) -> None:
    values = np.array(line.values, dtype=float)
    mean, colour = values.mean(0), PALETTE[place % len(PALETTE)]
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(line.steps, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        line.steps, mean, color=colour, marker=MARKERS[place % len(MARKERS)], label=plain(line.name, MOST_OF_NAME)
    )


def _score_axis(axes: Axes, lines: Sequence[Line], metric: str, chance: float | None) -> None:
    axes.set_ylabel(plain(metric))
    values = np.concatenate([np.array(line.values, dtype=float).ravel() for line in lines])
    if chance is not None:
        axes.axhline(chance, color=LOST, linewidth=1.0, linestyle=":", label=f"chance, {chance:.3g}")
    if np.nanmin(values) >= 0 and np.nanmax(values) <= 1:
        axes.set_ylim(0, 1.03)  # a share: the whole of it is shown


def _spread_note(lines: Sequence[Line]) -> str:
    counts = sorted({len(line.values) for line in lines})
    if counts == [1]:
        return "one seed"
    return f"mean and standard deviation, {' or '.join(map(str, counts))} seeds"


def _considered(found: Explanation) -> list[str]:
    """The classes that have the largest probability at K, in the order of the labels."""
    if found.probabilities is None:
        raise ValueError("the model answers with a number, so there are no probabilities to draw")
    best = found.probabilities[found.row(found.read)].topk(min(MOST_CLASSES, len(found.labels))).indices.tolist()
    return [found.labels[place] for place in sorted(best)]


def _class_curves(axes: Axes, found: Explanation, shown: Sequence[str]) -> None:
    colours = label_colours(found.labels if len(found.labels) <= len(PALETTE) else shown)
    for place, label in enumerate(shown):
        marker = MARKERS[place % len(MARKERS)]
        axes.plot(
            found.steps, _chances(found, label), color=colours[label], marker=marker, label=plain(label, MOST_OF_NAME)
        )
    left = len(found.labels) - len(shown)
    axes.set_title("Probability of each class" + (f" ({left} more are not shown)" if left else ""), pad=16)


def _contrast_curves(axes: Axes, found: Contrast, label: str) -> None:
    colour = label_colours(found.matched.labels)[label]
    axes.plot(found.matched.steps, _chances(found.matched, label), color=colour, marker="o", label="as it is")
    axes.plot(
        found.mismatched.steps, _chances(found.mismatched, label), color=colour, marker="o", linestyle=":",
        markerfacecolor="white", label="with other " + " and ".join(map(plain, found.instead)),
    )  # fmt: skip
    axes.set_title(f"P({plain(label, MOST_OF_NAME)})", pad=16)


def _chances(found: Explanation, label: str) -> list[float]:
    if found.probabilities is None:
        raise ValueError("the model answers with a number, so there are no probabilities to draw")
    if label not in found.labels:
        raise ValueError(f"there is no label {label!r}: {nearest(label, found.labels)}")
    return found.probabilities[:, found.labels.index(label)].tolist()
