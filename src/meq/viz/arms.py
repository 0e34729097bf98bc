"""Arms side by side: means, spread, and whether the difference to the reference is called."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meq.core.options import checked_options
from meq.experiments.compare import CALLED, REFERENCE, ArmLine
from meq.viz.colours import BLUE, FAINT, INK, LOST
from meq.viz.style import MOST_OF_NAME, new_figure, plain, styled

ROW = 0.42
"""Inches per arm."""


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
    axes.annotate(
        _words(line), (1, place), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points",
        va="center", ha="left", fontsize=8, color=INK if filled else FAINT,
    )  # fmt: skip


def _words(line: ArmLine) -> str:
    """ "+0.021 ± 0.004, called; 3 of 3": the paired difference to the reference, with its spread."""
    parts = []
    if line.difference is not None:
        spread = "" if line.difference_spread is None else f" ± {line.difference_spread:.3g}"
        parts.append(f"{line.difference:+.3f}{spread}, ")
    return plain(f"{''.join(parts)}{line.verdict}; {line.runs}")
