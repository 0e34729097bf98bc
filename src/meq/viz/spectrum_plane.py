"""Eigenvalues in the complex plane: of the map, and of the step that is taken."""

from __future__ import annotations

import torch
from jaxtyping import Complex
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from meq.analysis.spectrum import Eigenvalues
from meq.core.options import checked_options
from meq.viz.colours import BLUE, FAINT, ORANGE, RULE
from meq.viz.style import new_figure, styled

MARGIN = 1.12


@checked_options
def eigenvalue_plane(found: Eigenvalues | Complex[Tensor, "..."], *, damping: float | None = None) -> Figure:
    """Eigenvalues lambda of the map with the unit circle; with `damping` d also (1 - d) + d lambda, joined to them.

    The undamped iteration converges nearby if all of the first lie inside the circle, the damped one if all of the
    second do.
    """
    values = (found.values if isinstance(found, Eigenvalues) else found).flatten()
    values = values[~values.abs().isnan()].to(torch.complex128)
    if not len(values):
        raise ValueError("there are no eigenvalues to draw: none was found")
    with styled():
        figure = new_figure(5.6, 5.4)
        axes = figure.add_subplot()
        _circle(axes)
        if damping is not None:
            moved = (1 - damping) + damping * values
            for a, b in zip(values.tolist(), moved.tolist(), strict=True):
                axes.plot([a.real, b.real], [a.imag, b.imag], color=RULE, linewidth=0.8, zorder=1)
            _points(axes, moved, ORANGE, "s", f"damped step, (1 - β) + βλ, β = {damping:.3g}")
        _points(axes, values, BLUE, "o", "undamped map, λ")
        side = MARGIN * max(1.0, float(values.abs().max()))
        axes.set(xlim=(-side, side), ylim=(-side, side), xlabel="real part", ylabel="imaginary part")
        axes.set_aspect("equal")
        axes.set_title(_title(values), pad=10)
        figure.legend(loc="outside lower center", ncols=1)
    return figure


def _circle(axes: Axes) -> None:
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=FAINT, linewidth=1.2, label="unit circle"))
    axes.axhline(0, color=RULE, linewidth=0.8)
    axes.axvline(0, color=RULE, linewidth=0.8)
    axes.grid(False)


def _points(axes: Axes, values: Tensor, colour: str, marker: str, name: str) -> None:
    radius = float(values.abs().max())
    axes.scatter(
        values.real.tolist(), values.imag.tolist(), s=26, color=colour, marker=marker, alpha=0.8, linewidths=0,
        label=f"{name}; largest modulus {radius:.3f}", zorder=3,
    )  # fmt: skip


def _title(values: Tensor) -> str:
    outside = int((values.abs() >= 1).sum())
    count = "none" if not outside else f"{outside} of {len(values)}"
    return f"Leading eigenvalues of dT/dz: {count} on or outside the unit circle"
