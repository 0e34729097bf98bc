"""Curves along the iteration (scores, probabilities, residuals), and along the epochs of a run's training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import meq.viz.needs  # noqa: F401

# isort: split
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from meq.options import checked_options, nearest
from meq.runs.explanation import Contrast, Explanation
from meq.studies import RunRecord
from meq.viz.colours import BLUE, FAINT, GREEN, INK, LOST, ORANGE, PALETTE, VERMILION, class_colours, label_colours
from meq.viz.style import MOST_OF_NAME, mark_read, new_figure, plain, styled, whole_decades, whole_steps
from meq.viz.text import MOST_LETTERS

MARKERS = "osD^vP*X"

Rows = Sequence[Mapping[str, Any]]
"""What a record keeps of each epoch."""


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
            values, colour = np.array(line.values, dtype=float), PALETTE[place % len(PALETTE)]
            mean, marker = values.mean(0), MARKERS[place % len(MARKERS)]
            if len(values) > 1:
                spread = values.std(0, ddof=1)
                axes.fill_between(line.steps, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
            axes.plot(line.steps, mean, color=colour, marker=marker, label=plain(line.name, MOST_OF_NAME))
        axes.set_ylabel(plain(metric))
        every = np.concatenate([np.array(line.values, dtype=float).ravel() for line in lines])
        if chance is not None:
            axes.axhline(chance, color=LOST, linewidth=1.0, linestyle=":", label=f"chance, {chance:.3g}")
        if np.nanmin(every) >= 0 and np.nanmax(every) <= 1:
            axes.set_ylim(0, 1.03)  # a share: the whole of it is shown
        if read is not None:
            mark_read(axes, read)
        whole_steps(axes)
        axes.set_title(f"{plain(metric[:1].upper() + metric[1:])} when the answer is read at step k", pad=16)
        seeds = sorted({len(line.values) for line in lines})
        counted = f"mean and standard deviation, {' or '.join(map(str, seeds))} seeds"
        axes.legend(loc="lower right", title="one seed" if seeds == [1] else counted, title_fontsize=8)
    return figure


@checked_options
def probability_along_k(found: Explanation | Contrast, *, label: str | None = None) -> Figure:
    """P(class) along k. Of a contrast: one class, solid as it is and dotted with the other content."""
    first = found.matched if isinstance(found, Contrast) else found
    if first.probabilities is None:
        raise ValueError("the model answers with a number, so there are no probabilities to draw")
    with styled():
        figure = new_figure(6.4, 3.6)
        axes = figure.add_subplot()
        if isinstance(found, Contrast):
            _contrast_curves(axes, found, label or first.answer)
        else:
            colours = {found.labels[place]: colour for place, colour in class_colours(found).items()}
            _class_curves(axes, found, colours if label is None else {label: colours.get(label, PALETTE[0])})
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


def training_curves(record: RunRecord) -> Figure:
    """Panels over epochs from a run's record; those of the equilibrium only for a model that has one."""
    if not record.curves:
        raise ValueError("the run has no curves: it stopped before its first epoch was over")
    rows = 3 if record.vitals else 1
    with styled():
        figure = new_figure(8.4, 2.35 * rows + 0.6)
        losses, score, *health = figure.subplots(rows, 2, sharex=True, squeeze=False).flat
        _draw_scores(losses, score, record)
        if record.vitals:
            _draw_health(health, record.vitals)
        for axes in figure.axes:
            mark_alarms(axes, record)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if axes in figure.axes[-2:]:
                axes.set_xlabel("epoch")
        title = f"{record.model['model']} on {record.data.name}, seed {record.seed}: {record.status}"
        alarms = sorted({str(alarm["kind"]) for alarm in record.alarms})
        note = f"alarms (red lines): {', '.join(alarms)}" if alarms else "no alarms"
        figure.suptitle(plain(f"{title}; {note}", 2 * MOST_LETTERS), x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def _class_curves(axes: Axes, found: Explanation, colours: Mapping[str, str]) -> None:
    for marker, (label, colour) in zip(cycle(MARKERS), colours.items(), strict=False):
        axes.plot(found.steps, _chances(found, label), color=colour, marker=marker, label=plain(label, MOST_OF_NAME))
    left = len(found.labels) - len(colours)
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
    assert found.probabilities is not None
    if label not in found.labels:
        raise ValueError(f"there is no label {label!r}: {nearest(label, found.labels)}")
    return found.probabilities[:, found.labels.index(label)].tolist()


def _draw_scores(losses: Axes, score: Axes, record: RunRecord) -> None:
    _plot(losses, epochs_of(record.curves, "train_loss"), BLUE, "o", "train (whole objective)")
    _plot(losses, epochs_of(record.curves, "dev_loss"), ORANGE, "s", "dev (task alone)")
    losses.set_ylabel("loss")
    losses.set_ylim(bottom=0)
    losses.legend()
    series = epochs_of(record.curves, record.metric)
    _plot(score, series, GREEN, "o", "dev")
    mark_kept(score, record, size=10)
    if series and all(0 <= value <= 1 for value in series.values()):
        score.set_ylim(0, 1.03)  # a share: the whole of it is shown
    score.set_ylabel(plain(record.metric))
    score.legend(loc="lower right")


def _draw_health(panels: Sequence[Axes], vitals: Rows) -> None:
    """Residual, Jacobian, gates and coupling of the equilibrium, by epoch."""
    residual, jacobian, gates, coupling = panels
    series = epochs_of(vitals, "residual")
    _plot(residual, series, BLUE, "o", "final residual")
    whole_decades(residual, series.values())
    residual.set_ylabel("residual at K")
    _plot(jacobian, epochs_of(vitals, "jacobian_norm"), BLUE, "o", "|J|, rms singular value")
    _plot(jacobian, epochs_of(vitals, "radius"), ORANGE, "s", "spectral radius")
    jacobian.axhline(1, color=FAINT, linewidth=1.0, linestyle=":")
    jacobian.set_ylim(bottom=0)
    jacobian.set_ylabel("of the undamped map")
    _plot_modalities(gates, vitals, "gate")
    gates.set(ylim=(0, 1), ylabel="mean gate")
    _plot_modalities(coupling, vitals, "cross_self")
    coupling.set_ylim(bottom=0)
    coupling.set_ylabel("cross / self")
    for axes in (jacobian, gates, coupling):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right")
        else:  # a model without a gate has none to draw
            axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center", color=FAINT)


def mark_alarms(axes: Axes, record: RunRecord) -> None:
    for alarm in record.alarms:
        axes.axvline(alarm["epoch"], color=VERMILION, linewidth=1.1, alpha=0.8, zorder=1)


def mark_kept(axes: Axes, record: RunRecord, *, size: float) -> None:
    """A circle around the score of the epoch whose weights were kept."""
    kept = record.selected
    if kept.epoch is not None and kept.value is not None:
        axes.plot(
            [kept.epoch], [kept.value], marker="o", markersize=size, markerfacecolor="none", markeredgecolor=INK,
            linestyle="", label=f"kept: epoch {kept.epoch} ({kept.by})",
        )  # fmt: skip


def epochs_of(rows: Rows, key: str) -> dict[int, float]:
    """By epoch, where the value is known."""
    return {row["epoch"]: float(row[key]) for row in rows if row.get(key) is not None}


def _plot_modalities(axes: Axes, rows: Rows, key: str) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.get(key, {})))
    for place, name in enumerate(names):
        series = {row["epoch"]: row[key][name] for row in rows if row.get(key, {}).get(name) is not None}
        _plot(axes, series, PALETTE[place % len(PALETTE)], "os^Dv"[place % 5], name)


def _plot(axes: Axes, series: Mapping[int, float], colour: str, marker: str, name: str) -> None:
    axes.plot(list(series), list(series.values()), color=colour, marker=marker, label=plain(name, MOST_OF_NAME))
