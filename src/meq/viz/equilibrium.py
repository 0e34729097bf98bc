"""The equilibrium in two figures: eigenvalues in the complex plane, and which modality moves which."""

from __future__ import annotations

import math
from collections.abc import Mapping

import meq.viz.needs  # noqa: F401

# isort: split
import numpy as np
import torch
from jaxtyping import Complex
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from meq.analysis.spectrum import Eigenvalues
from meq.analysis.tables import middle
from meq.options import checked_options
from meq.viz.colours import BLUE, FAINT, ORANGE, RULE, ink_on, shade
from meq.viz.style import HEAT_MAP, MOST_OF_NAME, new_figure, plain, styled

MARGIN, CLOSEST = 1.12, 0.02
"""How much larger a panel is than what it shows; half the side of the closest panel."""
PUSHED = "Total influence: size of the blocks of (I - J)⁻¹"


@checked_options
def eigenvalue_plane(found: Eigenvalues | Complex[Tensor, "*axes"], *, damping: float | None = None) -> Figure:
    """Eigenvalues lambda of the map with the unit circle; with `damping` d also (1 - d) + d lambda, joined to them.

    Left the plane, right a closer look at where they lie. The undamped iteration converges nearby if all of the first
    lie inside the circle, the damped one if all of the second do.
    """
    values = (found.values if isinstance(found, Eigenvalues) else found).flatten()
    values = values[~values.abs().isnan()].to(torch.complex128)
    if not len(values):
        raise ValueError("there are no eigenvalues to draw: none was found")
    moved = None if damping is None else (1 - damping) + damping * values
    with styled():
        figure = new_figure(8.6, 5.5, constrained=False)  # which equal scales would leave no room in
        whole, close = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.085, right=0.98, top=0.84, bottom=0.27, wspace=0.24)
        for axes in (whole, close):
            _draw(axes, values, moved, damping)
        side = MARGIN * max(1.0, float(values.abs().max()))
        whole.set(xlim=(-side, side), ylim=(-side, side), ylabel="imaginary part", title="the plane")
        # on the right, a square around all of them
        shown = values if moved is None else torch.cat([values, moved])
        parts = shown.real, shown.imag
        centre = [float(part.max() + part.min()) / 2 for part in parts]
        half = max(MARGIN * max(float(part.max() - part.min()) / 2 for part in parts), CLOSEST)
        close.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half))
        close.set_title("where they lie, closer")
        outside = int((values.abs() >= 1).sum())
        count = "none" if not outside else f"{outside} of {len(values)}"
        title = f"Leading eigenvalues of dT/dz: {count} on or outside the unit circle"
        figure.suptitle(title, x=0.02, y=0.97, ha="left", fontsize=10, fontweight="bold")
        figure.legend(*whole.get_legend_handles_labels(), loc="lower center", ncols=1)
    return figure


@checked_options
def influence_map(
    table: Mapping[str, Mapping[str, Tensor]],
    *,
    title: str = PUSHED,
    rows: str = "equilibrium of",
    columns: str = "pushed by",
) -> Figure:
    """`Influence.total`, or `influence` or `inputs` of a diagnosis: medians over samples, written into the cells."""
    names = list(table)
    others = list(dict.fromkeys(b for row in table.values() for b in row))
    if not names or not others:
        raise ValueError("there is no influence to draw: the table is empty, as it is when every sample diverged")
    values = np.array([[middle(table[a][b]) if b in table[a] else math.nan for b in others] for a in names])
    top = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    with styled():
        figure = new_figure(1.5 * len(others) + 2.6, 1.0 * len(names) + 1.7)
        axes = figure.add_subplot()
        shown = axes.imshow(values, cmap=HEAT_MAP, vmin=0, vmax=top or 1.0, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            ink = ink_on(shade(value / top if top and math.isfinite(value) else 0.0))
            axes.text(column, row, f"{value:.3g}", ha="center", va="center", color=ink, fontsize=10)
        axes.set_xticks(range(len(others)), [plain(name, MOST_OF_NAME) for name in others])
        axes.set_yticks(range(len(names)), [plain(name, MOST_OF_NAME) for name in names])
        axes.set(xlabel=columns, ylabel=rows)
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.suptitle(title, x=0.02, ha="left", fontsize=10, fontweight="bold")
        figure.colorbar(shown, ax=axes, label="median over samples", fraction=0.08).outline.set_visible(False)
    return figure


def _draw(axes: Axes, values: Tensor, moved: Tensor | None, damping: float | None) -> None:
    turns = [2 * math.pi * part / 720 for part in range(721)]
    circle = [math.cos(turn) for turn in turns], [math.sin(turn) for turn in turns]
    axes.plot(*circle, color=FAINT, linewidth=1.2, label="unit circle")
    axes.axhline(0, color=RULE, linewidth=0.8)
    axes.axvline(0, color=RULE, linewidth=0.8)
    axes.grid(False)
    if moved is not None:
        for a, b in zip(values.tolist(), moved.tolist(), strict=True):
            axes.plot([a.real, b.real], [a.imag, b.imag], color=RULE, linewidth=0.8, zorder=1)
        _points(axes, moved, ORANGE, "s", f"damped step, (1 - β) + βλ with β = {damping:.3g}")
    _points(axes, values, BLUE, "o", "undamped map, λ")
    axes.set_aspect("equal")
    axes.set_xlabel("real part")


def _points(axes: Axes, values: Tensor, colour: str, marker: str, name: str) -> None:
    radius = float(values.abs().max())
    axes.scatter(
        values.real.tolist(), values.imag.tolist(), s=24, color=colour, marker=marker, alpha=0.75, linewidths=0,
        label=f"{name}; largest modulus {radius:.3f}", zorder=3,
    )  # fmt: skip
