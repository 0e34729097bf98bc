"""What is shown of a pair: every step at once, of which the page lets one be seen. All text is escaped."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence

from PIL import Image

from meq.analysis.tables import number
from meq.experiments.runs.explanation import Explanation, ModalityView
from meq.viz.app.charts import Curve, log_chart, share_chart, value_chart
from meq.viz.colours import FAINT, LOST, PALETTE, ink_on, label_colours, shade
from meq.viz.letters import escaped
from meq.viz.overlay import heat_picture

SIDE = 320
"""Pixels of a picture's longer side on the page."""
MOST_CLASSES = 6
"""Of thousands, those that the model considers most at K."""
MOST_LETTERS = 200
"""Of a label or a name, which stand in every step."""
TITLES = ("Caption", "Other caption")
MODALITY_COLOURS = (PALETTE[5], PALETTE[3])
"""Apart from those of the labels."""


def look_panel(explanations: Sequence[Explanation], k: int) -> str:
    """One card per explanation, side by side; step k is seen first."""
    cards = [_card(title, each, k) for title, each in zip(TITLES, explanations, strict=False)]
    lost = "" if len(explanations) > 1 else " alone"
    return (
        f'<section class="meq-look{lost}" data-read="{explanations[0].read}" style="--k: {k}">'
        f'<p class="said" role="status" aria-live="polite">{_headline(explanations, explanations[0].row(k))}</p>'
        f'<div class="cards">{"".join(cards)}</div>{_remarks(explanations)}</section>'
    )


def refusal_panel(message: str) -> str:
    return f'<div class="meq-refusal" role="alert">{escaped(message)}</div>'


def preview_panel(picture: Image.Image, name: str) -> str:
    """The picture that is chosen, small."""
    small = picture.copy()
    small.thumbnail((SIDE, SIDE))
    if max(small.size) < SIDE // 2:
        small = small.resize((2 * small.width, 2 * small.height), Image.Resampling.NEAREST)
    size = f"{picture.width:,} x {picture.height:,}"
    return (
        f'<figure class="meq-preview">{_image(small, f"the chosen picture, {name}")}'
        f"<figcaption>{escaped(name, MOST_LETTERS)}, {size} pixels</figcaption></figure>"
    )


def _card(title: str, found: Explanation, k: int) -> str:
    frames = [_frame(found, row, shown=step == k) for row, step in enumerate(found.steps)]
    return (
        f'<article class="card" aria-label="{title}"><h3>{title}</h3>{"".join(frames)}'
        f'<div class="charts">{_answer_chart(found, k)}{_residual_chart(found, k)}</div></article>'
    )


def _frame(found: Explanation, row: int, *, shown: bool) -> str:
    """All that changes with the step."""
    (picture,), (text,) = found.pictures, found.texts
    step = found.steps[row]
    heat = _image(heat_picture(picture, row, side=SIDE), f"heat map over the picture at step {step}")
    bars = _score(found, row) if found.probabilities is None else _bars(found, row)
    said = escaped(_said(found, row), MOST_LETTERS)
    return (
        f'<div class="frame" data-k="{step}" data-said="{said}"{"" if shown else " hidden"}>'
        f'<div class="seen">{heat}{_words(text, row)}</div>{bars}{_residuals(found, row)}</div>'
    )


def _words(view: ModalityView, row: int) -> str:
    peak = view.peak or 1.0
    marked = []
    for word, share in view.words(row):
        colour = shade(share / peak)
        marked.append(
            f'<span style="background: {colour}; color: {ink_on(colour)}" title="{share:.2f} times an even share">'
            f"{escaped(word)}</span>"
        )
    return f'<p class="words">{" ".join(marked)}</p>'


def _bars(found: Explanation, row: int) -> str:
    assert found.probabilities is not None
    rows = []
    for place in _considered(found):
        chance, label = float(found.probabilities[row, place]), found.labels[place]
        width = 100 * chance if math.isfinite(chance) else 0.0
        best = " best" if found.predictions[row] == place else ""
        rows.append(
            f'<div class="bar{best}"><span class="label">{escaped(label, MOST_LETTERS)}</span><span class="track">'
            f'<span class="fill" style="width: {width:.1f}%; background: {_label_colour(found, place)}"></span></span>'
            f'<span class="chance" data-label="{escaped(label, MOST_LETTERS)}">{chance:.3f}</span></div>'
        )
    left = len(found.labels) - len(rows)
    more = f'<p class="more">and {left:,} other answers</p>' if left else ""
    return f'<div class="bars" role="group" aria-label="probabilities">{"".join(rows)}{more}</div>'


def _score(found: Explanation, row: int) -> str:
    name = escaped(found.labels[0], MOST_LETTERS)
    return f'<div class="bars"><p class="score">{name}: <b>{found.said(row)}</b></p></div>'


def _residuals(found: Explanation, row: int) -> str:
    parts = []
    for (name, values), colour in zip(found.residuals.items(), _colours(len(found.residuals)), strict=True):
        called = escaped(name, MOST_LETTERS)
        parts.append(
            f'<span><i style="background: {colour}"></i>{called} <b data-residual="{called}">'
            f"{number(float(values[row]))}</b></span>"
        )
    return f'<p class="residuals">residual: {" ".join(parts)}</p>'


def _answer_chart(found: Explanation, k: int) -> str:
    if found.probabilities is None:
        curve = Curve(name=found.labels[0], colour=PALETTE[0], values=found.logits[:, 0].tolist())
        return value_chart("answer", [curve], found.steps, read=found.read, k=k)
    curves = [
        Curve(
            name=found.labels[place],
            colour=_label_colour(found, place),
            values=found.probabilities[:, place].tolist(),
        )
        for place in _considered(found)
    ]
    return share_chart("probability", curves, found.steps, read=found.read, k=k)


def _residual_chart(found: Explanation, k: int) -> str:
    named = zip(found.residuals.items(), _colours(len(found.residuals)), strict=True)
    curves = [Curve(name=name, colour=colour, values=values.tolist()) for (name, values), colour in named]
    return log_chart("residual |z - T(z)| / |z|", curves, found.steps, read=found.read, k=k)


def _considered(found: Explanation) -> list[int]:
    assert found.probabilities is not None
    if len(found.labels) <= MOST_CLASSES:
        return list(range(len(found.labels)))
    return found.probabilities[found.row(found.read)].nan_to_num(0).topk(MOST_CLASSES).indices.tolist()


def _label_colour(found: Explanation, place: int) -> str:
    if len(found.labels) <= len(PALETTE):
        return label_colours(found.labels)[found.labels[place]]
    shown = _considered(found)
    return PALETTE[shown.index(place)] if place in shown else LOST


def _colours(count: int) -> list[str]:
    return [MODALITY_COLOURS[place] if place < len(MODALITY_COLOURS) else FAINT for place in range(count)]


def _headline(explanations: Sequence[Explanation], row: int) -> str:
    first = explanations[0]
    step = first.steps[row]
    said = "; ".join(_said(each, row) for each in explanations)
    return f"k = {step}{' (K, read here)' if step == first.read else ''}: {escaped(said, 2 * MOST_LETTERS)}"


def _said(found: Explanation, row: int) -> str:
    """The answer in words, with its probability where it has one."""
    chance = found.confidence(row)
    return found.said(row) + (f" ({chance:.3f})" if math.isfinite(chance) else "")


def _remarks(explanations: Sequence[Explanation]) -> str:
    first = explanations[0]
    whose = "the number" if first.head == "score" else "the answer read at K"
    lines = [
        f"Heat and shaded words: {first.method}, what {whose} depends on; one colour scale for all steps. The dashed "
        f"line is K = {first.read}, the step the answer is read at; what comes after it goes beyond training.",
        *(
            f"{title}: {each.shares_in_words}."
            for title, each in zip(TITLES, explanations, strict=False)
            if each.effects
        ),
        *([f"{first.evidence}."] if first.evidence else []),
        *(
            f"{title}: the iteration stopped being finite after step {each.stopped}, which is shown from then on."
            for title, each in zip(TITLES, explanations, strict=False)
            if each.stopped is not None
        ),
    ]
    return "".join(f'<p class="remark">{escaped(line)}</p>' for line in lines)


def _image(picture: Image.Image, alternative: str) -> str:
    """Inside the page: no file is written for it, and no address of it exists."""
    out = io.BytesIO()
    picture.convert("RGB").save(out, "JPEG", quality=88, subsampling=0)
    data = base64.b64encode(out.getvalue()).decode()
    return (
        f'<img src="data:image/jpeg;base64,{data}" width="{picture.width}" height="{picture.height}" '
        f'alt="{escaped(alternative, MOST_LETTERS)}">'
    )
