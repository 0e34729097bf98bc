"""The worst and the best examples of a run, each with its way along the iteration."""

from __future__ import annotations

import math

from meq.experiments.explanation import Explanation
from meq.experiments.judged import REASONS
from meq.experiments.showcase_file import ExampleFile, ShowcaseFile, opened_picture
from meq.viz.grid import explanation_grid
from meq.viz.report.markup import Html, Part, join, note, paragraph, tag
from meq.viz.report.pictures import photograph, thumbnail

LONGEST = 1200
"""Letters of a text that are shown; a page of text would bury the rest."""


def examples(found: ShowcaseFile) -> Html:
    """By reason, in the order of how much they teach."""
    if not found.examples:
        return note("No example can be shown here; see what is missing.")
    parts: list[Part] = [paragraph(found.chosen)]
    if any(example.explanation for example in found.examples):
        parts.append(paragraph(_how_to_read(found)))
    for reason in REASONS:
        chosen = [example for example in found.examples if example.reason == reason]
        if chosen:
            parts += [tag("h3", reason.capitalize()), *(_example(each) for each in chosen)]
    return join(parts)


def _how_to_read(found: ShowcaseFile) -> str:
    method = next(each.explanation.method for each in found.examples if each.explanation)
    return (
        "Each column is one step k of the same iteration. The colour over the picture and behind the words shows which "
        f"tokens the answer rests on at that step (method: {method}); the border's colour is the answer that would be "
        "given there. One scale per row, so columns can be compared."
    )


def _example(example: ExampleFile) -> Html:
    explanation = example.explained()
    return tag(
        "article",
        tag("h4", f"Example {example.id}"),
        _verdict(example),
        [tag("blockquote", _cut(text)) for text in example.texts.values()],
        _pictures(example) if explanation is None else _grid(example, explanation),
        of={"class": "example"},
    )


def _verdict(example: ExampleFile) -> Html:
    sure = "" if math.isnan(example.confidence) else f", with probability {example.confidence:.3f}"
    if example.reason.endswith(("off", "nearest")):
        return paragraph(f"True: {example.truth}. Answer: {example.answer}.")
    right = example.answer == example.truth
    mark = tag("span", "right" if right else "wrong", of={"class": "right" if right else "wrong"})
    return paragraph(f"True: {example.truth}. Answer: {example.answer}{sure}: ", mark, ".")


def _grid(example: ExampleFile, explanation: Explanation) -> Html:
    figure = explanation_grid([explanation], steps=list(explanation.steps))
    path = ", ".join(f"{explanation.said(row)} at k = {step}" for row, step in enumerate(explanation.steps))
    top = "; ".join(
        f"words that count most at K in {view.name}: {', '.join(view.top_words(explanation.row(explanation.read)))}"
        for view in explanation.texts
    )
    stopped = "" if explanation.stopped is None else f" The iteration diverged after step {explanation.stopped}."
    return photograph(
        figure,
        alt=f"Heat maps and answers of example {example.id} along the iteration: {path}. {top}.",
        caption=f"Answers along k: {path}.{stopped}",
    )


def _pictures(example: ExampleFile) -> list[Html]:
    return [
        thumbnail(opened_picture(kept), alt=f"The {name} of example {example.id}")
        for name, kept in example.pictures.items()
    ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} \N{HORIZONTAL ELLIPSIS}"
