"""Who moves whom, as a table of colours with its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from meq.analysis.tables import middle
from meq.core.options import checked_options
from meq.viz.colours import HEAT, ink_on, shade
from meq.viz.style import MOST_OF_NAME, new_figure, plain, styled

PUSHED = "Total influence: size of the blocks of (I - J)⁻¹"


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
        colours = LinearSegmentedColormap.from_list("heat", [tuple(part / 255 for part in each) for each in HEAT])
        shown = axes.imshow(values, cmap=colours, vmin=0, vmax=top or 1.0, aspect="auto")
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
