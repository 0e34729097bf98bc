"""Depth made visible: which answers are there at which step, and one trail that lights up hop by hop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import meq.viz.needs  # noqa: F401

# isort: split
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
from meq.studies.measures.stopping import FULL, OWN
from meq.viz.colours import FAINT, INK, PALETTE
from meq.viz.curves import MARKERS
from meq.viz.study_figures import ReportedStudy
from meq.viz.style import Drawing, new_figure, styled

INKS = {"red": "#CC2A29", "green": "#278F33", "blue": "#2A4CCC"}
"""The colours that cards have, as answers."""
NOT_YET = "#C9CCD1"
ACROSS, MOST_STEPS = 4, 8
"""Steps of a trail in a row, and in all."""


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
    drawn = {"form": "pixels"} if read else {}
    data = open_data(config.name, **{**config.options, **drawn})
    example = next(each for each in data.splits[followed["split"]] if each.id == followed["id"])
    return [
        Drawing(
            figure=trail_figure(example, followed, data.labels),
            alt=f"A trail of depth {example.facts['depth']}: cards and rules, step by step.",
            caption=f"{arm}, one seed: of the examples that are right in the end, the one whose answers arrive latest, "
            f"of depth {example.facts['depth']}: {example.facts['because']}. {read}Frames and dots: what each card and "
            "rule says at step k, grey where it is not right.",
            photograph=True,
        )
    ]


def steps_by_depth(found: ReportedStudy) -> list[Drawing]:
    """For the reference: how many steps each stopping rule takes on examples of each depth."""
    arm, values = found.study.reference, found.measured.get("stopping", {})
    seeds = by_arm(found.study, values).get(arm, [])
    splits = seeds[0]["readings"] if seeds else {}
    return [
        Drawing(
            figure=steps_figure(seeds, split),
            alt=f"Mean steps of {arm} on {split} by depth, for every stopping rule.",
            caption=f"{arm} on {split}: mean steps until an example is read, by the depth of its deepest answer and by "
            f"the rule that stops; the mean of {len(seeds)} seeds. The dashed line is as many steps as the depth.",
        )
        for split, readings in splits.items()
        if readings[FULL].get("by_depth")
    ]


def steps_figure(seeds: Sequence[Mapping[str, Any]], split: str) -> Figure:
    """A line per rule over the depths."""
    depths = [int(depth) for depth in seeds[0]["readings"][split][FULL]["by_depth"]]
    rules = dict.fromkeys(rule for each in seeds for rule in each["readings"][split] if rule not in (OWN, FULL))
    with styled():
        figure = new_figure(6.4, 3.6)
        axes = figure.add_subplot()
        for place, rule in enumerate(rules):
            readings = [each["readings"][split].get(rule, {}) for each in seeds]
            some = [each["by_depth"] for each in readings if each.get("by_depth")]  # seeds of older versions have none
            means = [np.mean([each[str(depth)] for each in some]) for depth in depths]
            axes.plot(depths, means, color=PALETTE[place], marker=MARKERS[place], label=rule)
        axes.plot(depths, depths, color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set_xlabel("depth of the deepest answer")
        axes.set_ylabel("mean steps")
        axes.set_ylim(bottom=0)
        axes.set_title(f"Steps taken on {split}")
        if rules:
            axes.legend()
    return figure


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
        as_deep = {depth: row for row, depth in enumerate(depths) if depth < len(columns)}
        axes.plot(list(as_deep), list(as_deep.values()), color="white", linewidth=1.2, linestyle=(0, (4, 3)))
        axes.axvline(first["read"][split], color=INK, linewidth=1.0)
        axes.set_title(f"Right answers on {split}")
        figure.colorbar(image, ax=axes, label="share of right answers")
    return figure


def trail_figure(example: Example, followed: Mapping[str, Any], labels: Sequence[str]) -> Figure:
    """The picture and the rules at the steps at which an answer changes; of many of them, some."""
    steps, answers = list(followed["steps"]), followed["answers"]
    changes = [0, *(place for place in range(1, len(steps)) if answers[place] != answers[place - 1])]
    shown = [changes[round(place)] for place in np.linspace(0, len(changes) - 1, min(len(changes), MOST_STEPS))]
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
                _draw_step(axes, example, pixels, answers[shown[place]], labels)
                axes.text(0, -pixels.shape[0] * 0.02, f"k = {steps[shown[place]]}", fontsize=9, fontweight="bold")
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
    before = len(answers) - cards - len(example.facts["rules"])  # a question comes first
    for rule, sentence in enumerate(example.facts["rules"]):
        token = before + rule
        colour = _colour(answers[cards + token], int(truth[cards + token]), labels)
        y = side + line * (rule + 1)
        heavy = ("text", token) in trail
        axes.add_patch(Rectangle((0, y - line * 0.55), line * 0.7, line * 0.7, facecolor=colour, edgecolor="none"))
        axes.text(line, y, sentence, fontsize=5.6, va="center", color=INK if heavy else FAINT,
                  fontweight="bold" if heavy else "normal")  # fmt: skip
    axes.set_xlim(0, side)
    axes.set_ylim(side + line * (len(example.facts["rules"]) + 1), -side * 0.12)


def _colour(said: int, true: int, labels: Sequence[str]) -> tuple[float, float, float]:
    """What is said, grey where it is wrong; of a token that is not asked, nobody knows."""
    return to_rgb(INKS.get(labels[said], NOT_YET) if true in (said, -1) else NOT_YET)
