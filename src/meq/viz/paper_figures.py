"""Figures of the paper: probabilities of true, wrong and irrelevant captions along k, and the model itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import meq.viz.needs  # noqa: F401

# isort: split
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from meq.runs.run_files import RunFiles, open_run_files
from meq.studies.measures.contract import by_arm
from meq.studies.measures.grounding import numbers
from meq.studies.study import run_place
from meq.viz.colours import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, VERMILION
from meq.viz.curves import Line, score_along_k
from meq.viz.study_figures import ReportedStudy, first_of
from meq.viz.style import MOST_OF_NAME, Drawing, mark_read, new_figure, plain, styled, whole_steps

ACROSS = 3
CAPTIONS = {"true": (BLUE, "-", "true"), "wrong": (VERMILION, ":", "wrong"), "irrelevant": (GREEN, "--", "irrelevant")}
"""By what is said of a picture: colour, line, and word."""


def probability_by_step(found: ReportedStudy) -> list[Drawing]:
    """P(entailment) along k of true, wrong and irrelevant captions: the mean over pictures, then picture by picture."""
    first = first_of(found, "grounding")
    if first is None:
        return []
    (arm, seed), kept = first
    steps, read = kept["p_entailment"]["steps"], kept["read"]
    panels: list[tuple[str, Mapping[str, Sequence[float]]]] = [
        (f"mean of {kept['pictures']} pictures", _curves(kept["p_entailment"], CAPTIONS))
    ]
    for example in kept["examples"]:  # several may have the same caption
        known = {name: numbers(row) for name, row in example["p_entailment"].items() if name in CAPTIONS}
        panels.append((example["text"], known))
    rows = math.ceil(len(panels) / ACROSS)
    with styled():
        figure = new_figure(9.0, 2.3 * rows + 0.7)
        grid = figure.subplots(rows, ACROSS, sharex=True, sharey=True, squeeze=False)
        for axes, (title, curves) in zip(grid.flat, panels, strict=False):
            for name, curve in curves.items():
                colour, style, word = CAPTIONS[name]
                axes.plot(steps[: len(curve)], curve[: len(steps)], color=colour, linestyle=style, label=word)
            axes.set_title(plain(title, MOST_OF_NAME), fontsize=8.5, pad=14)
            axes.set_ylim(-0.02, 1.02)
            mark_read(axes, read)
            whole_steps(axes)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.supylabel("P(entailment)", fontsize=9)
    ends = "; ".join(f"{CAPTIONS[name][2]} {curve[0]:.2f} to {curve[-1]:.2f}" for name, curve in panels[0][1].items())
    return [
        Drawing(
            figure=figure,
            alt=f"P(entailment) along k, means from k = {steps[0]} to {steps[-1]}: {ends}.",
            caption=f"{arm}, seed {seed}: P(entailment) read at step k for a true, a wrong and an irrelevant caption "
            f"({kept['irrelevant']['text']}), with the read depth K marked.",
        )
    ]


def accuracy_by_step(found: ReportedStudy) -> list[Drawing]:
    """Accuracy along k on the pictures that were read, and in words how it is far beyond K."""
    arms = by_arm(found.study, found.measured.get("grounding", {}))
    if not arms:
        return []
    lines, words = [], []
    for arm, seeds in arms.items():
        known = [dict(zip(each["accuracy"]["steps"], each["accuracy"]["score"], strict=True)) for each in seeds]
        near = tuple(k for k in known[0] if k in seeds[0]["p_entailment"]["steps"])
        lines.append(Line(name=arm, steps=near, values=tuple(tuple(scores[k] for k in near) for scores in known)))
        read, far = (sum(x[k] for x in known) / len(known) for k in (seeds[0]["read"], seeds[0]["horizon"]))
        words.append(f"{arm}: {read:.3g} at K = {seeds[0]['read']}, {far:.3g} at k = {seeds[0]['horizon']}")
    first = next(iter(arms.values()))[0]
    said = f"accuracy on {first['data']}, {first['split']}, read at step k. {'; '.join(words)}."
    return [
        Drawing(
            figure=score_along_k(lines, read=first["read"], metric="accuracy"),
            alt=f"All that is said of the pictures: {said}",
            caption=f"All that is said of {first['pictures']} pictures: {said}",
        )
    ]


def _curves(found: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    return {name: found[name] for name in names if found.get(name) is not None}


# -- the model ---------------------------------------------------------------------------------------------------------

WIDE, HIGH, ROW = 1.75, 0.62, 1.5
"""Inches of a box, and from one modality to the next."""
COUPLED, TREE = "MutualEquilibrium", "EquilibriumTree"
LEVEL = 2.65
"""Inches from one pair of a merge tree to the next."""


def architecture(found: ReportedStudy) -> list[Drawing]:
    """The reference's model as its record says it is built; nothing without coupled states."""
    scored = [run for run, record in found.records.items() if record.scored]
    runs = (run for run in found.study.runs() if run[0] == found.study.reference and run in scored)
    files = next((open_run_files(found.folder / run_place(*run)) for run in runs), None)
    if files is None or files.record.model.get("model") not in (COUPLED, TREE) or files.task is None:
        return []
    options, names = files.record.model["options"], list(files.task.widths)
    tree = options["order"] if files.record.model["model"] == TREE else None
    high, wide = ROW * len(names) + 0.55, 9.75 if tree is None else 4.6 + LEVEL * _levels(tree)
    with styled():
        figure = new_figure(wide, high, constrained=False)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(0, wide)
        axes.set_ylim(0, high)
        axes.axis("off")
        if tree is None:
            _draw_model(axes, files, names)
        else:
            _draw_tree(axes, files, tree)
    parts = ", ".join(_update(options))
    if tree is not None:
        return [
            Drawing(
                figure=figure,
                alt=f"The model: {', '.join(names)} are merged pair by pair, {_words(tree)}; every pair couples for "
                f"K = {options['steps']} steps ({parts}), and the last is read and answered.",
                caption=f"{found.study.reference}, {files.record.parameters:,} trained parameters: the first pair "
                "settles, an MLP makes one summary of it, which meets the next modality.",
            )
        ]
    return [
        Drawing(
            figure=figure,
            alt=f"The model: {', '.join(names)} enter by their encoders, couple for K = {options['steps']} steps "
            f"({parts}), are read and answered.",
            caption=f"{found.study.reference}, {files.record.parameters:,} trained parameters: every state is updated "
            "from its own old state and those of all the others, K times; then all are read.",
        )
    ]


def _update(options: Mapping[str, Any]) -> list[str]:
    """What one step of a state is made of."""
    if options.get("mixer") == "mlp":
        parts = ["one MLP of all states"]
    else:
        mixer = "gMLP" if options.get("mixer") == "gmlp" else "cross-attention"
        parts = [
            word for part, word in (("own", "S: self-attention"), ("cross", f"M: {mixer}")) if options.get(part, True)
        ]
    gate = {True: "soft gate", False: "no gate"}.get(options.get("gate", True), "decaying carry")
    damping = options.get("damping", 0.5)
    return [*parts, gate, "learned damping" if damping == "learned" else f"damping {damping:g}"]


def _draw_model(axes: Axes, files: RunFiles, names: Sequence[str]) -> None:
    options, task = files.record.model["options"], files.task
    assert task is not None
    middles = [ROW * (len(names) - place) - 0.3 for place in range(len(names))]
    centre, (*parts, gate, damping) = sum(middles) / len(middles), _update(options)
    for place, (name, middle) in enumerate(zip(names, middles, strict=True)):
        colour = PALETTE[place % len(PALETTE)]
        encoder = task.encoders[name].name if name in task.encoders else "features as they come"
        _box(axes, 0.25, middle, [name, encoder], colour)
        _box(axes, 2.45, middle, ["f: linear", f"{task.widths[name]} to {options['dim']}"], colour)
        _box(axes, 4.75, middle, [f"state of {name}", *parts], colour, high=0.9, wide=2.1)
        _arrow(axes, (2.0, middle), (2.45, middle))
        _arrow(axes, (4.2, middle), (4.75, middle))
        _arrow(axes, (6.85, middle), (7.75, centre))
    for above, below in itertools.pairwise(middles):
        _arrow(axes, (5.5, above - 0.45), (5.5, below + 0.45), colour=ORANGE)
        _arrow(axes, (6.1, below + 0.45), (6.1, above - 0.45), colour=ORANGE)
    _box(axes, 7.75, centre, [f"readout: {options.get('readout', 'pooled')}", f"head: {task.head}"], INK)
    words = f"K = {options['steps']} steps, {gate}, {damping}"
    axes.text(5.8, 0.22, plain(words), ha="center", fontsize=9, color=FAINT)


def _draw_tree(axes: Axes, files: RunFiles, order: Any) -> None:
    """Every pair with what it is made of; its summary goes on to the next one."""
    options, task = files.record.model["options"], files.task
    assert task is not None
    (*parts, gate, damping), leaves = _update(options), _leaves(order)
    middles = {name: ROW * (len(leaves) - place) - 0.3 for place, name in enumerate(leaves)}

    def draw(part: Any) -> tuple[float, float]:
        """Where arrows leave from."""
        if isinstance(part, str):
            encoder = task.encoders[part].name if part in task.encoders else "features as they come"
            _box(axes, 0.25, middles[part], [part, encoder], PALETTE[leaves.index(part) % len(PALETTE)])
            return 2.0, middles[part]
        ends = [draw(side) for side in part]
        middle, left = sum(end[1] for end in ends) / len(ends), LEVEL * _levels(part) - 0.1
        summary = [] if part is order else ["h: MLP to one summary"]
        _box(
            axes,
            left,
            middle,
            [f"{_words(part[0])} and {_words(part[1])}", *parts, *summary],
            ORANGE,
            high=1.1,
            wide=2.2,
        )
        for end, up in zip(ends, (0.25, -0.25), strict=True):
            _arrow(axes, end, (left, middle + up))
        return left + 2.2, middle

    right, centre = draw(order)
    _box(axes, right + 0.45, centre, [f"readout: {options.get('readout', 'pooled')}", f"head: {task.head}"], INK)
    _arrow(axes, (right, centre), (right + 0.45, centre))
    words = f"every pair: K = {options['steps']} steps, {gate}, {damping}"
    axes.text(right - 1.1, 0.22, plain(words), ha="center", fontsize=9, color=FAINT)


def _leaves(order: Any) -> list[str]:
    return [order] if isinstance(order, str) else [name for side in order for name in _leaves(side)]


def _levels(order: Any) -> int:
    return 0 if isinstance(order, str) else 1 + max(map(_levels, order))


def _words(order: Any) -> str:
    return order if isinstance(order, str) else f"({' and '.join(map(_words, order))})"


def _box(
    axes: Axes, left: float, middle: float, lines: Sequence[str], colour: str, *, wide: float = WIDE, high: float = HIGH
) -> None:
    shape = FancyBboxPatch(
        (left, middle - high / 2), wide, high, boxstyle="round,pad=0.02,rounding_size=0.08", facecolor="white",
        edgecolor=colour, linewidth=1.4,
    )  # fmt: skip
    axes.add_patch(shape)
    words = "\n".join(plain(line, 28) for line in lines)
    axes.text(left + wide / 2, middle, words, ha="center", va="center", fontsize=8)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, colour: str = FAINT) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.2})
