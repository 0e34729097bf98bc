"""Eigenvalues in the complex plane: of the map, and of the step that is taken."""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from meq.analysis.spectrum import Eigenvalues
from meq.core.options import checked_options
from meq.viz.colours import BLUE, FAINT, ORANGE, RULE
from meq.viz.style import new_figure, styled

MARGIN, CLOSEST = 1.12, 0.02
"""Of a panel's side beyond what it shows; half the side of the closest look."""


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
        _look_closer(close, values if moved is None else torch.cat([values, moved]))
        figure.suptitle(_title(values), x=0.02, y=0.97, ha="left", fontsize=10, fontweight="bold")
        figure.legend(*whole.get_legend_handles_labels(), loc="lower center", ncols=1)
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


def _look_closer(axes: Axes, values: Tensor) -> None:
    """A square around all of them."""
    centre = [float(part.max() + part.min()) / 2 for part in (values.real, values.imag)]
    half = max(float(part.max() - part.min()) / 2 for part in (values.real, values.imag))
    half = max(half * MARGIN, CLOSEST)
    axes.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half))
    axes.set_title("where they lie, closer")


def _title(values: Tensor) -> str:
    outside = int((values.abs() >= 1).sum())
    count = "none" if not outside else f"{outside} of {len(values)}"
    return f"Leading eigenvalues of dT/dz: {count} on or outside the unit circle"
