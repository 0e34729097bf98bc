"""A run as it went: losses, score, and the health of the equilibrium, with the alarms where they were raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from meq.experiments import RunRecord
from meq.viz.colours import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, VERMILION
from meq.viz.style import MOST_LETTERS, MOST_OF_NAME, new_figure, plain, styled, whole_decades

Rows = Sequence[Mapping[str, Any]]


def training_curves(record: RunRecord) -> Figure:
    """Panels over epochs from a run's record; those of the equilibrium only for a model that has one."""
    if not record.curves:
        raise ValueError("the run has no curves: it stopped before its first epoch was over")
    panels: list[Callable[[Axes, RunRecord], None]] = [_losses, _score]
    if record.vitals:
        panels += [_residual, _jacobian, _gates, _coupling]
    rows = (len(panels) + 1) // 2
    with styled():
        figure = new_figure(8.4, 2.35 * rows + 0.6)
        for axes, draw in zip(figure.subplots(rows, 2, sharex=True, squeeze=False).flat, panels, strict=True):
            draw(axes, record)
            _mark_alarms(axes, record.alarms)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if axes in figure.axes[-2:]:
                axes.set_xlabel("epoch")
        title = f"{record.model['model']} on {record.data.name}, seed {record.seed}: {record.status}"
        alarms = sorted({str(alarm["kind"]) for alarm in record.alarms})
        note = f"alarms (red lines): {', '.join(alarms)}" if alarms else "no alarms"
        figure.suptitle(plain(f"{title}; {note}", 2 * MOST_LETTERS), x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def _losses(axes: Axes, record: RunRecord) -> None:
    _plot(axes, record.curves, "train_loss", BLUE, "o", "train (whole objective)")
    _plot(axes, record.curves, "dev_loss", ORANGE, "s", "dev (task alone)")
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=0)
    axes.legend()


def _score(axes: Axes, record: RunRecord) -> None:
    _plot(axes, record.curves, record.metric, GREEN, "o", "dev")
    chosen = record.selected
    if chosen.epoch is not None and chosen.value is not None:
        axes.plot(
            [chosen.epoch], [chosen.value], marker="o", markersize=10, markerfacecolor="none", markeredgecolor=INK,
            linestyle="", label=f"kept: epoch {chosen.epoch} ({chosen.by})",
        )  # fmt: skip
    values = [float(row[record.metric]) for row in record.curves if row.get(record.metric) is not None]
    if values and min(values) >= 0 and max(values) <= 1:
        axes.set_ylim(0, 1.03)  # a share: the whole of it is shown
    axes.set_ylabel(plain(record.metric))
    axes.legend(loc="lower right")


def _residual(axes: Axes, record: RunRecord) -> None:
    _plot(axes, record.vitals, "residual", BLUE, "o", "final residual")
    whole_decades(axes, [float(row["residual"]) for row in record.vitals if row.get("residual") is not None])
    axes.set_ylabel("residual at K")


def _jacobian(axes: Axes, record: RunRecord) -> None:
    _plot(axes, record.vitals, "jacobian_norm", BLUE, "o", "|J|, rms singular value")
    _plot(axes, record.vitals, "radius", ORANGE, "s", "spectral radius")
    axes.axhline(1, color=FAINT, linewidth=1.0, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("of the undamped map")
    axes.legend(loc="lower right")


def _gates(axes: Axes, record: RunRecord) -> None:
    _plot_each(axes, record.vitals, "gate")
    axes.set_ylim(0, 1)
    axes.set_ylabel("mean gate")
    axes.legend(loc="lower right")


def _coupling(axes: Axes, record: RunRecord) -> None:
    _plot_each(axes, record.vitals, "cross_self")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("cross / self")
    axes.legend(loc="lower right")


def _plot(axes: Axes, rows: Rows, key: str, colour: str, marker: str, name: str) -> None:
    kept = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None]
    axes.plot([x for x, _ in kept], [y for _, y in kept], color=colour, marker=marker, label=plain(name, MOST_OF_NAME))


def _plot_each(axes: Axes, rows: Rows, key: str) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.get(key, {})))
    for place, name in enumerate(names):
        kept = [(row["epoch"], row[key][name]) for row in rows if row.get(key, {}).get(name) is not None]
        colour, marker = PALETTE[place % len(PALETTE)], "os^Dv"[place % 5]
        axes.plot(
            [x for x, _ in kept], [y for _, y in kept], color=colour, marker=marker, label=plain(name, MOST_OF_NAME)
        )


def _mark_alarms(axes: Axes, alarms: Rows) -> None:
    for alarm in alarms:
        axes.axvline(alarm["epoch"], color=VERMILION, linewidth=1.2, alpha=0.8, zorder=1)
