"""What the report of a run shows, as its templates ask for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meq.analysis.diagnosis import Diagnosis
from meq.analysis.tables import number
from meq.analysis.verdict import QUESTIONS, Verdict
from meq.data.metrics import as_shown
from meq.runs.evaluate import FARTHEST, NEAREST, REASONS, asked_tokens, confusion_table, score_answers
from meq.runs.probabilities import checked_probabilities
from meq.runs.run_files import RunFiles
from meq.runs.showcase import Showcase, ShownExample, opened_picture
from meq.studies import RunRecord
from meq.tables import Cell, Column, Table
from meq.viz.figures import RUN_FIGURES, drawings_of
from meq.viz.report.document import Section, embedded, in_words, make_sections, thumbnail
from meq.viz.run_figures import ReportedRun
from meq.viz.trust import importance_of

MODELS = {
    "MutualEquilibrium": "a mutual equilibrium: every modality has a state of its own, and each step changes every "
    "state by its input, by itself and by the other states, so that they come to agree",
    "EquilibriumTree": "a tree of mutual equilibria: modalities come to agree in pairs, and what they agree on with "
    "the next one",
    "SingleState": "an equilibrium with one state for all modalities together",
    "SingleVector": "an equilibrium over one joint vector of all modalities",
    "FeatureSum": "an equilibrium over the sum of the modalities' features",
    "Concat": "a single pass that joins the pooled modalities, without any exchange before that",
    "SelfAttention": "a single pass of self-attention over the tokens of all modalities",
    "CrossAttention": "a single pass in which the modalities attend to each other",
    "LowRankFusion": "a single pass that multiplies the modalities in a low-rank form",
}
TASKS = {
    "classes": "one of several classes",
    "labels": "any of several labels",
    "choices": "one of several choices",
    "score": "a number",
    "ordinal": "one of several classes that have an order",
    "tokens": "one of several classes for every token",
}
VERDICTS = {
    "healthy": "the iteration settles, it has learned, every modality counts for the answers, and they are coupled",
    "identity collapse": "a step changes nothing any more: the states stay where they began, and the small residual is "
    "no agreement",
    "fixed-point collapse": "every input ends in the same state, so the answer cannot depend on it",
    "expansive": "the iteration moves away from what it should settle at",
    "does not settle": "the iteration is not at rest within the steps that were allowed",
    "nothing learned": "its answers are no better than always the same answer, or than chance",
    "modalities not coupled": "the states do not listen to each other",
    "no fault found, but not all was measured": "what was measured is in order, which is not yet healthy",
    "modality ignored": "one of the inputs has no part in the answer",
}
NOT_SHOWN = ("encoders", "features", "truncated", "not encoded", "columns")
"""Facts of a data set that are said elsewhere, or meant for programs."""
LONGEST = 1200
"""Letters of a text that are shown; a page of text would bury the rest."""


def run_title(files: RunFiles) -> str:
    record = files.record
    name = record.arm or str(record.model["model"])
    return f"{name} on {record.data.name}, seed {record.seed}"


def run_sections(context: Mapping[str, Any], *, prefix: str = "") -> list[Section]:
    """The sections of the page; `prefix` keeps the anchors apart where a page holds more than a run."""
    seen: Showcase | None = context["showcase"]
    titles = {
        "scores": "Scores",
        **({"worth": "What each modality is worth"} if context["worth"] or context["importance"] else {}),
        **({"reliability": "How far probabilities can be relied on"} if context["probabilities"] else {}),
        **({"steps": "The answer along the iteration"} if seen and seen.trajectory else {}),
        **({"examples": "The worst and the best examples"} if seen and seen.examples else {}),
        **({"diagnosis": "Diagnosis of the equilibrium"} if seen and seen.diagnosis else {}),
        **{"training": "Training", "about": "What was run", "hashes": "Hashes"},
    }
    return make_sections("run.html", titles, context, about="run", prefix=prefix)


def run_context(run: ReportedRun) -> dict[str, Any]:
    """Everything that the sections of a run show."""
    files, record, source = run.files, run.files.record, run.files.record.data.source_fingerprint
    options = {key: value for key, value in record.model["options"].items() if key != "widths"}
    found, task = files.hashes(), TASKS.get(files.head, files.head)
    return {
        "record": record,
        "arm": record.arm,
        "showcase": run.showcase,
        "drawings": embedded(drawings_of(RUN_FIGURES, run)),
        "kind": MODELS.get(str(record.model["model"]), f"a model of the class {record.model['model']}"),
        "task": task.replace("several", str(len(files.labels))) if files.labels and files.head != "choices" else task,
        "steps": files.steps,
        "outcome": ", ".join(
            f"{scores[record.metric]:.4g} on {split}"
            for split, scores in record.metrics.items()
            if record.metric in scores
        ),
        "scores": _scores(record),
        "confusions": {split: _confusions(files, split) for split in record.predictions},
        "tokens": _tokens(run.showcase) if run.showcase is not None and run.showcase.tokens else None,
        "worth": None if run.showcase is None or run.showcase.worth is None else run.showcase.worth.table(),
        "importance": None if (counts := importance_of(run)) is None else counts.table(),
        "words": None if counts is None else counts.words_table(),
        "probabilities": _probabilities(files),
        "data": _data(record, files.labels),
        "options": ", ".join(f"{key} {in_words(value)}" for key, value in options.items()),
        "duration": _duration(record.wall_seconds),
        "hashes": [
            *([each.what, each.file, each.sha256, each.verdict] for each in found),
            ["features, ids and targets", "", record.data.fingerprint, ""],
            *([["data before encoding", "", source, ""]] if source is not None else []),
        ],
        "changed": [each.file for each in found if each.verdict.startswith("NOT")],
        **(_seen(run.showcase) if run.showcase is not None else {}),
    }


def _diagnosis(found: Diagnosis, *, split: str) -> dict[str, Any]:
    """The verdict, the questions behind it with their answers, and every number with what it means."""
    return {
        "verdict": found.verdict.value,
        "healthy": found.verdict is Verdict.HEALTHY,
        "meaning": VERDICTS.get(found.verdict.value, ""),
        "evidence": found.evidence,
        "findings": [[QUESTIONS[name] + "?", each.answer, each.words] for name, each in found.findings.items()],
        "numbers": found.numbers(),
        "measured": len(found.radius),
        "samples": found.samples,
        "split": split,
    }


def _coloured(examples: Sequence[ShownExample]) -> str:
    """Where the figures show what tokens count for, in words; empty where no modality has several tokens."""
    views = [view for each in examples if each.explanation for view in each.explanation.views.values()]
    places = {
        "over the picture": any(each.pictures for each in examples),
        "behind the words": any(each.texts for each in examples),
        "of the cells": any(view.kind in ("audio", "features") and view.attribution.shape[1] > 1 for view in views),
    }
    return " and ".join(words for words, there in places.items() if there)


def _probabilities(files: RunFiles) -> dict[str, Any] | None:
    """Calibration error and log loss before and after, and how often sets held the true answer."""
    found = checked_probabilities(files)
    if found is None:
        return None
    after = None if found.after is None else found.after.error
    rows: list[dict[str, Cell]] = [
        {"what": "expected calibration error", "raw": found.before.error, "after": after},
        {"what": "log loss", "raw": found.loss[0], "after": found.loss[1]},
    ]
    fitted = found.temperature
    note = "No temperature was fitted: `meq calibrate RUN --temperature` does, on rows that chose nothing."
    if fitted is not None:
        own = " These are the rows it was fitted on." if found.own else ""
        note = f"Temperature {fitted.value:.3f}, fitted on {fitted.source.words}.{own}"
    sets: list[dict[str, Cell]] = [{"level": level, "held": held, "size": size} for level, held, size in found.covered]
    titles = {
        "level": "coverage that was asked for",
        "held": "sets that hold the true class",
        "size": "classes in a set",
    }
    return {
        "errors": Table.of(
            f"Probabilities on {found.split}, {found.rows:,} examples",
            rows,
            keys=("what", "raw", "after"),
            titles={"what": "", "after": "with its temperature"},
            notes=(note,),
        ),
        "sets": Table.of(f"Sets of classes on {found.split}", sets, titles=titles, digits={"level": 2})
        if sets
        else None,
    }


def _seen(found: Showcase) -> dict[str, Any]:
    """What was seen of the run by looking at its model."""
    trajectory = found.trajectory
    made: dict[str, Any] = {
        "method": next((each.explanation.method for each in found.examples if each.explanation), None),
        "coloured": _coloured(found.examples),
        "examples": {
            reason: shown
            for reason in REASONS
            if (shown := [_example(each) for each in found.examples if each.reason == reason])
        },
        "diagnosis": None if found.diagnosis is None else _diagnosis(found.diagnosis, split=found.origin.split),
    }
    if trajectory is not None:
        at = trajectory.steps.index(trajectory.read) if trajectory.read in trajectory.steps else None
        made["flips"] = 0 if at is None else trajectory.flips[at]
        made["drift"] = ", ".join(f"{name} {number(value)}" for name, value in trajectory.drift.items())
    return made


def _scores(record: RunRecord) -> Table:
    """Every score by split, and what the first of them is held against."""
    names = list(dict.fromkeys(name for found in record.metrics.values() for name in found))
    chosen = record.selected
    weights = f"the best by {chosen.metric} on {chosen.split}" if chosen.by == "best" else "the last"
    beside = ("95 % interval", "always the same", "chance") if record.context else ()
    shown = [as_shown(name, 0.0)[0] for name in names]
    titles = ("split", "examples", *shown[:1], *beside, *shown[1:])
    rows = []
    for split, found in record.metrics.items():
        values = [None if name not in found else as_shown(name, found[name])[1] for name in names]
        context = _context(record, split, names[0]) if beside else ()
        rows.append((split, record.data.splits.get(split), *values[:1], *context, *values[1:]))
    ending = () if record.ending is None else (record.ending,)
    return Table(
        title="Scores of the kept weights",
        columns=tuple(Column(key=name, title=name) for name in titles),
        rows=tuple(rows),
        notes=(
            f"Weights: epoch {chosen.epoch}, {weights}. Loss: the task's alone, without penalties.",
            *ending,
            *record.notes,
        ),
    )


def _context(record: RunRecord, split: str, metric: str) -> tuple[str | float | None, ...]:
    """The interval of a score, what always the same answer scores, and chance."""
    context = record.context.get(split)
    if context is None:
        return (None, None, None)
    interval = context.intervals.get(metric)
    constant = None if context.constant is None else as_shown(metric, context.constant)[1]
    return (None if interval is None else interval.shown_for(metric), constant, context.chance)


def _confusions(files: RunFiles, split: str) -> dict[str, Any] | None:
    """Which classes are taken for which; None where the stored answers are not there."""
    predictions = files.predictions(split)
    if predictions is None:
        return None
    tokens = files.head == "tokens"
    scored = score_answers(asked_tokens(predictions), "classes") if tokens else score_answers(predictions, files.head)
    table = confusion_table(scored, files.labels, split=split) if files.labels else None
    if table is not None and tokens:
        table = replace(table, title=f"{table.title}, over the tokens that are asked")
    return {"table": table, "lost": scored.lost}


def _tokens(found: Showcase) -> Table:
    """How many answers are right, by modality and of whole examples."""
    return Table.of(
        f"Right answers by modality on {found.origin.split}",
        [{"of": each.of, "answers": each.answers, "right": each.accuracy} for each in found.tokens],
        titles={"answers": "asked", "right": "share right"},
        notes=("Of the examples that were computed again. A whole example is right if all its tokens are.",),
    )


def _data(record: RunRecord, labels: Sequence[str]) -> list[tuple[str, str]]:
    data = record.data
    found = [
        ("data set", data.name),
        ("examples", ", ".join(f"{name} {count:,}" for name, count in data.splits.items())),
    ]
    if labels:
        shown = ", ".join(labels[:12]) + (f" and {len(labels) - 12:,} more" if len(labels) > 12 else "")
        found.append(("labels" if record.objective.task != "score" else "answers with", shown))
    for name, width in record.model["options"].get("widths", {}).items():
        encoder = data.encoders.get(name)
        words = (
            f"comes as numbers, {width} per token"
            if encoder is None
            else f"encoded by {encoder.name}, revision {encoder.revision}, {width} numbers per token"
        )
        found.append((f"modality {name}", words))
    told = {key: value for key, value in data.facts.items() if key not in NOT_SHOWN and key not in data.splits}
    return found + [(key, in_words(value)) for key, value in told.items() if value not in (None, {})]


def _example(example: ShownExample) -> dict[str, Any]:
    """What is asked and what was answered; the pictures where they are not in a figure."""
    is_number = example.reason in (FARTHEST, NEAREST)
    bare = example.pictures.items() if example.explanation is None else ()
    return {
        "id": example.id,
        "texts": [text if len(text) <= LONGEST else f"{text[:LONGEST]} …" for text in example.texts.values()],
        "truth": example.truth,
        "answer": example.answer,
        "sure": "" if math.isnan(example.confidence) else f", with probability {example.confidence:.3f}",
        "right": None if is_number else example.answer == example.truth,
        "course": "" if is_number else _course(example),
        "pictures": [thumbnail(opened_picture(kept), f"The {name} of example {example.id}") for name, kept in bare],
    }


def _course(example: ShownExample) -> str:
    """How the answer came about, where it changed on the way, and what each modality adds to it."""
    found = example.explained()
    if found is None:
        return ""
    words = ""
    if found.head != "score":
        said = [found.said(row) for row in range(len(found.steps))]
        turns = [row for row in range(1, len(said)) if said[row] != said[row - 1]]
        changes = ", ".join(f"{said[row]} from k = {found.steps[row]} on" for row in turns)
        words = f" At the start {said[0]}, {changes}." if turns else " The same at every step that was looked at."
        words += "" if found.stopped is None else f" The iteration diverged after step {found.stopped}."
    return words + (f" {found.shares_in_words}." if found.shares_in_words else "")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
