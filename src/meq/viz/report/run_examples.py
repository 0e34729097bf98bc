"""The worst and the best examples of a run, each with its way along the iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meq.experiments.runs.explanation import Explanation
from meq.experiments.runs.judged import FARTHEST, NEAREST, REASONS
from meq.experiments.runs.showcase_file import ExampleFile, ShowcaseFile, opened_picture
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
            parts += [tag("h3", reason.capitalize()), _group(reason, chosen)]
    return join(parts)


def _how_to_read(found: ShowcaseFile) -> str:
    worth = (
        "Whether these maps mean anything for this model was not tested."
        if found.maps is None
        else (f"{found.maps.words}.")
    )
    method = next(each.explanation.method for each in found.examples if each.explanation)
    return (
        "In the figures a row is an example and a column is one step k of the same iteration. The colour over the "
        f"picture and behind the words shows which tokens the answer rests on at that step (method: {method}); the "
        "border's colour is the answer that would be given there. One scale per row, so columns can be compared. "
        f"{worth}"
    )


def _group(reason: str, chosen: Sequence[ExampleFile]) -> Html:
    """What is asked and answered in words, then all of it in one figure."""
    explained = [(example, found) for example in chosen if (found := example.explained()) is not None]
    bare = [example for example in chosen if example.explanation is None]
    return join(
        [_example(example) for example in chosen],
        _grid(reason, [found for _, found in explained]) if explained else None,
        [_pictures(example) for example in bare if example.pictures],
    )


def _example(example: ExampleFile) -> Html:
    """Its name, what it says, and what was answered."""
    texts = [tag("blockquote", _cut(text)) for text in example.texts.values()]
    return tag("article", tag("h4", f"Example {example.id}"), texts, _verdict(example), of={"class": "example"})


def _verdict(example: ExampleFile) -> Html:
    sure = "" if math.isnan(example.confidence) else f", with probability {example.confidence:.3f}"
    if example.reason in (FARTHEST, NEAREST):
        return paragraph(f"True: {example.truth}. Answer: {example.answer}.")
    right = example.answer == example.truth
    mark = tag("span", "right" if right else "wrong", of={"class": "right" if right else "wrong"})
    return paragraph(
        f"True: {example.truth}. Answer: {example.answer}{sure}: ", mark, f".{_path(example)}{_shares(example)}"
    )


def _shares(example: ExampleFile) -> str:
    """What each modality adds to the answer, beside the maps of its tokens."""
    found = example.explained()
    return f" {found.shares_in_words}." if found is not None and found.shares_in_words else ""


def _path(example: ExampleFile) -> str:
    """How the answer came about, where it changed on the way."""
    found = example.explained()
    if found is None or found.head == "score":
        return ""
    said = [found.said(row) for row in range(len(found.steps))]
    turns = [row for row in range(1, len(said)) if said[row] != said[row - 1]]
    stopped = "" if found.stopped is None else f" The iteration diverged after step {found.stopped}."
    if not turns:
        return f" The same at every step that was looked at.{stopped}"
    changes = ", ".join(f"{said[row]} from k = {found.steps[row]} on" for row in turns)
    return f" At the start {said[0]}, {changes}.{stopped}"


def _grid(reason: str, explanations: Sequence[Explanation]) -> Html:
    first = explanations[0]
    words = "; ".join(f"{each.id}: {_answers(each)}{_top_words(each)}" for each in explanations)
    return photograph(
        explanation_grid(explanations, steps=list(first.steps), title=f"{reason.capitalize()}, step by step"),
        alt=f"Heat maps over pictures and words, {reason}, a row per example and a column per step. {words}.",
        caption=f"{reason.capitalize()}: what the answer rests on at k = {', '.join(map(str, first.steps))}; "
        f"K = {first.read} is read.",
    )


def _answers(found: Explanation) -> str:
    return ", ".join(f"{found.said(row)} at k = {step}" for row, step in enumerate(found.steps))


def _top_words(found: Explanation) -> str:
    at = found.row(found.read)
    named = [f"; words that count most in {view.name} at K: {', '.join(view.top_words(at))}" for view in found.texts]
    return "".join(named)


def _pictures(example: ExampleFile) -> Html:
    shown = [
        thumbnail(opened_picture(kept), alt=f"The {name} of example {example.id}")
        for name, kept in example.pictures.items()
    ]
    return tag("figure", shown, tag("figcaption", f"Example {example.id}"), of={"class": "card small"})


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} \N{HORIZONTAL ELLIPSIS}"
