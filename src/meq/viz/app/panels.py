"""What is shown of a pair: every step at once, of which the page lets one be seen. The templates escape all text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from PIL import Image

from meq.analysis.tables import number
from meq.runs.explanation import Explanation
from meq.viz.colours import FAINT, PALETTE, class_colours, heat_picture, ink_on, shade
from meq.viz.templating import data_uri, encoded, templates
from meq.viz.text import shortened

PACKAGE = "meq.viz.app"
SIDE = 320
"""Pixels of a picture's longer side on the page."""
MOST_LETTERS = 200
"""Characters of a label or a name, which stand in every step."""
TITLES = ("Caption", "Other caption")
MODALITY_COLOURS = (PALETTE[5], PALETTE[3])
"""Colours of the modalities, different from those of the labels."""
WIDTH, HEIGHT = 340, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 22, 24
"""Size of a chart, and the margins around its plotted part, in the same units."""
FLOOR = 1e-8
"""Residuals below this are drawn here: float32 knows nothing smaller."""


def panel(name: str, *values: Any, **options: Any) -> str:
    """The HTML of a panel: a macro of templates/panels.html."""
    known = {"said": _said, "shade": shade, "ink_on": ink_on, "number": number, "isfinite": math.isfinite}
    template = templates(PACKAGE).get_template("panels.html", globals=known)
    return str(getattr(template.module, name)(*values, **options))


def look_panel(explanations: Sequence[Explanation], k: int) -> str:
    """One card per explanation, side by side; step k is seen first."""
    first, cards = explanations[0], []
    for title, found in zip(TITLES, explanations, strict=False):
        labels = class_colours(found)
        modalities = dict(zip(found.residuals, (*MODALITY_COLOURS, *[FAINT] * len(found.residuals)), strict=False))
        (picture,) = found.pictures
        heat = [
            _image(heat_picture(picture, row, side=SIDE), f"heat map over the picture at step {step}")
            for row, step in enumerate(found.steps)
        ]
        charts = [_answer_chart(found, labels), _residual_chart(found, modalities)]
        cards.append(
            {"title": title, "found": found, "heat": heat, "labels": labels, "modalities": modalities, "charts": charts}
        )
    headline = "; ".join(_said(each, first.row(k)) for each in explanations)
    return panel("look", cards, first.read, k, headline, _remarks(explanations))


def preview_panel(picture: Image.Image, name: str) -> str:
    """The picture that is chosen, small."""
    small = picture.copy()
    small.thumbnail((SIDE, SIDE))
    if max(small.size) < SIDE // 2:
        small = small.resize((2 * small.width, 2 * small.height), Image.Resampling.NEAREST)
    size = f"{picture.width:,} x {picture.height:,}"
    return panel("preview", _image(small, f"the chosen picture, {name}"), name, size)


def _said(found: Explanation, row: int) -> str:
    """The answer in words, with its probability where it has one."""
    chance = found.confidence(row)
    return found.said(row) + (f" ({chance:.3f})" if math.isfinite(chance) else "")


def _remarks(explanations: Sequence[Explanation]) -> list[str]:
    first = explanations[0]
    whose = "the number" if first.head == "score" else "the answer read at K"
    lines = [
        f"Heat and shaded words: {first.method}, what {whose} depends on; one colour scale for all steps. The dashed "
        f"line is K = {first.read}, the step the answer is read at; what comes after it goes beyond training."
    ]
    named = list(zip(TITLES, explanations, strict=False))
    lines += [f"{title}: {each.shares_in_words}." for title, each in named if each.effects]
    lines += [f"{first.evidence}."] if first.evidence else []
    return lines + [
        f"{title}: the iteration stopped being finite after step {each.stopped}, which is shown from then on."
        for title, each in named
        if each.stopped is not None
    ]


def _image(picture: Image.Image, alt: str) -> dict[str, Any]:
    uri = data_uri(encoded(picture, "JPEG", quality=88, subsampling=0), "image/jpeg")
    return {"uri": uri, "width": picture.width, "height": picture.height, "alt": alt}


# -- charts ------------------------------------------------------------------------------------------------------------

# Drawn by hand, not by matplotlib: they follow the colours of the page, light or dark, and the step's marker moves.


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A value per step, in a colour."""

    name: str
    colour: str
    values: Sequence[float]


def _answer_chart(found: Explanation, colours: Mapping[int, str]) -> dict[str, Any]:
    """Probabilities; the answer itself for a model that answers with a number."""
    if found.probabilities is not None:
        chances = found.probabilities.T.tolist()
        curves = [
            Curve(name=found.labels[place], colour=colour, values=chances[place]) for place, colour in colours.items()
        ]
        return _chart("probability", curves, found, {value: f"{value:g}" for value in (0.0, 0.5, 1.0)})
    curve = Curve(name=found.labels[0], colour=PALETTE[0], values=found.logits[:, 0].tolist())
    known = [value for value in curve.values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    middle = (low + high) / 2
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    return _chart("answer", [curve], found, {value: f"{value:.3g}" for value in (low, middle, high)})


def _residual_chart(found: Explanation, colours: Mapping[str, str]) -> dict[str, Any]:
    """On a logarithmic axis of whole decades."""
    curves = []
    for name, colour in colours.items():
        values = found.residuals[name].tolist()
        logs = [math.log10(max(value, FLOOR)) if math.isfinite(value) else math.nan for value in values]
        curves.append(Curve(name=name, colour=colour, values=logs))
    known = [value for each in curves for value in each.values if math.isfinite(value)] or [0.0]
    low, high = math.floor(min(known) + 1e-9), math.ceil(max(known) - 1e-9)
    high = max(high, low + 1)
    stride = max(1, math.ceil((high - low) / 3))
    ticks = {float(value): f"1e{value}" for value in range(low, high + 1, stride)}
    return _chart("residual |z - T(z)| / |z|", curves, found, ticks, high=high)


def _chart(
    title: str, curves: Sequence[Curve], found: Explanation, ticks: Mapping[float, str], *, high: float | None = None
) -> dict[str, Any]:
    """Where everything of a chart stands: values from the lowest tick to the highest, or to `high`."""
    steps, bottom = found.steps, HEIGHT - BOTTOM
    stride = (WIDTH - LEFT - RIGHT) / max(steps[-1] - steps[0], 1)
    low, high = min(ticks), max(ticks) if high is None else high

    def x(step: int) -> str:
        return f"{LEFT + (step - steps[0]) * stride:.1f}"

    def y(value: float) -> float:
        return bottom - min(max((value - low) / (high - low), 0.0), 1.0) * (bottom - TOP)

    def lines(curve: Curve) -> list[Markup]:
        """Points of lines, broken where a value is not finite; numbers only, and however many are never shortened."""
        runs: list[list[str]] = [[]]
        for step, value in zip(steps, curve.values, strict=True):
            if math.isfinite(value):
                runs[-1].append(f"{x(step)},{y(value):.1f}")
            elif runs[-1]:
                runs.append([])
        return [Markup(" ".join(run)) for run in runs if run]

    names = ", ".join(shortened(each.name, MOST_LETTERS) for each in curves)
    return {
        "title": title,
        "label": f"{title} along the steps: {names}",
        **{"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": bottom},
        "levels": [{"y": f"{y(v):.1f}", "text_y": f"{y(v) + 3.5:.1f}", "word": word} for v, word in ticks.items()],
        "steps": [{"x": x(step), "k": step} for step in steps[:: max(1, math.ceil(len(steps) / 8))]],
        "read_x": x(found.read),
        "start_x": x(0),
        "stride": f"{stride:.3f}",
        "curves": [{"name": each.name, "colour": each.colour, "lines": lines(each)} for each in curves],
    }
