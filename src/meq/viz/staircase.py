"""Depth made visible: which answers are there at which step, and one trail that lights up hop by hop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from meq.data.content import Picture
from meq.data.contract import Example
from meq.data.request import open_data
from meq.studies.measures.contract import by_arm
from meq.studies.measures.staircase import TOKENS, WHOLE
from meq.viz.colours import FAINT, INK
from meq.viz.study_figures import ReportedStudy
from meq.viz.style import Drawing, new_figure, styled

INKS = {"red": "#CC2A29", "green": "#278F33", "blue": "#2A4CCC"}
"""The colours that cards have, as answers."""
NOT_YET = "#C9CCD1"
ACROSS = 4
"""Steps of a trail in a row."""


def staircases(found: ReportedStudy) -> list[Drawing]:
    """For the reference: the share of right answers by depth and step, within and beyond the depth of training."""
    arm, values = found.study.reference, found.measured.get("staircase", {})
    seeds = by_arm(found.study, values).get(arm, [])
    if not seeds or "steps" not in seeds[0]:
        return []
    return [
        Drawing(
            figure=staircase_figure(seeds, split),
            alt=f"Share of right answers of {arm} on {split}, by depth and by the step that is read.",
            caption=f"{arm} on {split}: the share of right answers by the step k that is read and the depth of the "
            f"answer; the mean of {len(seeds)} seeds. The dashed line is k = depth.",
        )
        for split in seeds[0]["score"]
    ]


def trail(found: ReportedStudy) -> list[Drawing]:
    """One deep example of the reference: what every card and rule says at every step."""
    arm, values = found.study.reference, found.measured.get("staircase", {})
    seeds = by_arm(found.study, values).get(arm, [])
    if not seeds or "example" not in seeds[0]:
        return []
    followed = seeds[0]["example"]
    config = found.study.data
    read = "" if config.options.get("form") != "symbols" else "What was read are symbols of these cards and rules. "
    # symbols are drawn with the signs that they stand for: the same worlds, from the same seed
    drawn = {"form": "pixels", "signs": config.options.get("n", 9)} if read else {}
    data = open_data(config.name, **{**config.options, **drawn})
    example = next(each for each in data.splits[followed["split"]] if each.id == followed["id"])
    return [
        Drawing(
            figure=trail_figure(example, followed, data.labels),
            alt=f"A trail of depth {example.facts['depth']}: cards and rules, step by step.",
            caption=f"{arm}, one seed, one example of depth {example.facts['depth']}: {example.facts['because']}. "
            f"{read}Frames and dots: what each card and rule says at step k, grey where it is not yet right.",
            photograph=True,
        )
    ]


def staircase_figure(seeds: Sequence[Mapping[str, Any]], split: str) -> Figure:
    """A heat map: a row per depth, a column per step."""
    first = seeds[0]
    depths = sorted(int(name) for name in first["score"][split] if name not in (TOKENS, WHOLE))
    columns = [place for place, k in enumerate(first["steps"]) if k == place]  # the steps without gaps
    shares = np.array([[each["score"][split][str(depth)] for depth in depths] for each in seeds]).mean(0)[:, columns]
    with styled():
        figure = new_figure(1.6 + 0.3 * len(columns), 1.5 + 0.26 * len(depths))
        axes = figure.add_subplot()
        image = axes.imshow(shares, origin="lower", aspect="auto", vmin=0, vmax=1, cmap="viridis")
        axes.set_yticks(range(len(depths)), [str(depth) for depth in depths])
        axes.set_xlabel("step k that is read")
        axes.set_ylabel("depth of the answer")
        axes.grid(False)
        axes.plot([depth for depth in depths if depth < len(columns)], range(len(depths))[: len(columns)],
                  color="white", linewidth=1.2, linestyle=(0, (4, 3)))  # fmt: skip
        axes.axvline(first["read"][split], color=INK, linewidth=1.0)
        axes.set_title(f"Right answers on {split}")
        figure.colorbar(image, ax=axes, label="share of right answers")
    return figure


def trail_figure(example: Example, followed: Mapping[str, Any], labels: Sequence[str]) -> Figure:
    """The picture and the rules at the first steps, up to the one at which the trail is there."""
    depth, steps = int(example.facts["depth"]), list(followed["steps"])
    shown = [k for k in range(depth + 1) if k in steps]
    picture = example.content["image"]
    assert isinstance(picture, Picture)
    with picture.open() as opened:
        pixels = np.asarray(opened.convert("RGB"))
    rows = -(-len(shown) // ACROSS)
    with styled():
        figure = new_figure(2.3 * ACROSS, 3.5 * rows)
        grid = figure.subplots(rows, ACROSS, squeeze=False)
        for place, axes in enumerate(grid.flat):
            axes.axis("off")
            if place < len(shown):
                answers = followed["answers"][steps.index(shown[place])]
                _draw_step(axes, example, pixels, answers, labels)
                axes.set_title(f"k = {shown[place]}", fontsize=9)
    return figure


def _draw_step(
    axes: Axes, example: Example, pixels: np.ndarray[Any, Any], answers: Sequence[int], labels: Sequence[str]
) -> None:
    """Cards with a frame in the colour they say, and below them the rules with a dot."""
    truth, trail = example.target, {tuple(each) for each in example.facts["trail"]}
    assert truth is not None
    cards = len(example.facts["cards"])
    side = pixels.shape[0]
    across = round(cards**0.5)
    axes.imshow(pixels, extent=(0, side, side, 0))
    for card in range(cards):
        colour = _colour(answers[card], int(truth[card]), labels)
        row, column = divmod(card, across)
        size = side / across
        heavy = ("image", card) in trail
        frame = (column * size + 1.5, row * size + 1.5), size - 3, size - 3
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=colour, linewidth=3.2 if heavy else 1.6))
    line = side * 0.075
    for rule, sentence in enumerate(example.facts["rules"]):
        colour = _colour(answers[cards + rule], int(truth[cards + rule]), labels)
        y = side + line * (rule + 1)
        heavy = ("text", rule) in trail
        axes.add_patch(Rectangle((0, y - line * 0.55), line * 0.7, line * 0.7, facecolor=colour, edgecolor="none"))
        axes.text(line, y, sentence, fontsize=5.6, va="center", color=INK if heavy else FAINT,
                  fontweight="bold" if heavy else "normal")  # fmt: skip
    axes.set_xlim(0, side)
    axes.set_ylim(side + line * (len(example.facts["rules"]) + 1), 0)


def _colour(said: int, true: int, labels: Sequence[str]) -> tuple[float, float, float]:
    return to_rgb(INKS.get(labels[said], NOT_YET) if said == true else NOT_YET)
