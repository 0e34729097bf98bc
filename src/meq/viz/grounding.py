"""Where a model looks at every step, from what the measure `grounding` kept: maps on the places of their tokens."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from meq.analysis.maps import paint
from meq.experiments.measures.contract import Found
from meq.experiments.measures.grounding_maps import numbers
from meq.viz.colours import INK, label_colours
from meq.viz.style import new_figure, plain, styled

SIDE = 64
"""Pixels of a map's longer side: tokens are coarser than that."""
BORDER = 3.0


def grounding_grid(found: Found, *, method: str, most: int = 8) -> Figure:
    """Rows: kept examples. Columns: steps. The border is the answer at that step, the frame holds what is spoken of."""
    examples = [each for each in found["examples"] if method in each["maps"]]
    if not examples:
        raise ValueError(f"no maps of {method!r} were kept")
    rows = _spread(len(found["steps"]), found["steps"].index(found["read"]), most)
    colours = label_colours(found["labels"])
    with styled():
        figure = new_figure(1.15 * len(rows) + 0.2, 1.55 * len(examples) + 0.3)
        grid = figure.subplots(len(examples), len(rows), squeeze=False)
        for line, example in zip(grid, examples, strict=True):
            heats = [_heat(example, method, row) for row in range(len(found["steps"]))]
            peak = max(float(heat.max()) for heat in heats) or 1.0
            for axes, row in zip(line, rows, strict=True):
                probabilities = numbers(example["probabilities"][row])
                answer = found["labels"][max(range(len(probabilities)), key=probabilities.__getitem__)]
                axes.imshow((heats[row] / peak).numpy(), cmap="Oranges", vmin=0, vmax=1, extent=(0, SIDE, SIDE, 0))
                _frame(axes, example, colours[answer])
                axes.set_xlabel(plain(f"{answer} {max(probabilities):.2f}"), fontsize=6)
            line[0].set_title(plain(f"{example['text']} ({example['label']})"), loc="left", fontsize=7)
        for axes, row in zip(grid[-1], rows, strict=True):
            step = found["steps"][row]
            axes.annotate(
                f"k = {step}" + (" = K" if step == found["read"] else ""),
                (0.5, -0.32),
                xycoords="axes fraction",
                ha="center",
                fontsize=7,
            )
    return figure


def _heat(example: dict[str, Any], method: str, row: int) -> torch.Tensor:
    places = [[float("nan")] * 4 if box is None else numbers(box) for box in example["boxes"]]
    width, height = example["size"]
    boxes = torch.tensor(places) * torch.tensor([SIDE / width, SIDE / height] * 2)
    return paint(torch.tensor(numbers(example["maps"][method][row])), boxes, height=SIDE, width=SIDE)


def _frame(axes: Axes, example: dict[str, Any], colour: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=BORDER)
    if example["mask_box"] is not None:
        width, height = example["size"]
        left, top, right, bottom = example["mask_box"]
        corner, across, down = (left / width * SIDE, top / height * SIDE), right - left, bottom - top
        axes.add_patch(
            Rectangle(corner, across / width * SIDE, down / height * SIDE, fill=False, edgecolor=INK, linestyle=":")
        )


def _spread(count: int, read: int, most: int) -> list[int]:
    """At most so many rows, evenly apart, the read one among them."""
    if count <= most:
        return list(range(count))
    chosen = {round(place * (count - 1) / (most - 1)) for place in range(most - 1)} | {read}
    return sorted(chosen)
