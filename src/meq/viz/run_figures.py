"""The figures of a run, from its files: how it was trained, its answers along the iteration, its equilibrium."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from meq.analysis.tables import middle, number
from meq.runs.evaluate import REASONS
from meq.runs.explanation import Explanation
from meq.runs.run_files import RunFiles, open_run_files
from meq.runs.showcase import Showcase, read_showcase
from meq.viz.curves import Line, residual_along_k, score_along_k, training_curves
from meq.viz.equilibrium import eigenvalue_plane, influence_map
from meq.viz.grid import explanation_grid
from meq.viz.style import Drawing


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportedRun:
    """A run as it lies on disk, and what was seen of it."""

    files: RunFiles
    showcase: Showcase | None
    """None if it was not looked at, or with other weights."""


def chance_of(files: RunFiles) -> float | None:
    """The accuracy of a random guess among equally frequent classes; None for other scores."""
    guessed = files.head in ("classes", "ordinal") and files.record.metric == "accuracy"
    return 1 / len(files.labels) if guessed and files.labels else None


def open_reported_run(folder: Path, looks: Path | None = None) -> ReportedRun:
    """The run of a folder; `looks` is where it was looked at, if not there."""
    files = open_run_files(folder)
    found, checkpoint = read_showcase(looks or files.folder), files.record.checkpoint
    fits = found is not None and checkpoint is not None and found.origin.weights_sha256 == checkpoint.sha256
    return ReportedRun(files=files, showcase=found if fits else None)


def training(run: ReportedRun) -> list[Drawing]:
    """Losses, score and the health of the equilibrium over the epochs."""
    record = run.files.record
    if not record.curves:
        return []
    caption = "Training, epoch by epoch."
    if record.vitals:
        caption += (
            " Residual: how far one more step would move the states. |J| and spectral radius: how strongly a step "
            "answers to its own state. Gate: how much of a proposed change is taken. Cross / self: how much a state "
            "listens to the others, over itself."
        )
    first, last = record.curves[0], record.curves[-1]
    words = [f"Training curves over {len(record.curves)} epochs"]
    for key, name in (("train_loss", "train loss"), ("dev_loss", "dev loss"), (record.metric, f"dev {record.metric}")):
        if first.get(key) is not None and last.get(key) is not None:
            words.append(f"{name} from {first[key]:.3g} to {last[key]:.3g}")
    return [
        Drawing(
            figure=training_curves(record),
            alt=", ".join(words) + f"; {len(record.alarms)} alarms.",
            caption=caption + (" Red lines: alarms." if record.alarms else ""),
        )
    ]


def score_by_step(run: ReportedRun) -> list[Drawing]:
    """What the model would answer if it were read earlier or later, and how sure it would be."""
    if run.showcase is None or run.showcase.trajectory is None:
        return []
    found, made = run.showcase.trajectory, []

    def draw(values: tuple[float, ...], name: str, metric: str, spoken: str, caption: str) -> None:
        line = Line(name=name, steps=found.steps, values=(values,))
        figure = score_along_k([line], read=found.read, chance=chance_of(run.files), metric=metric)
        made.append(Drawing(figure=figure, alt=_along(spoken, found.steps, values), caption=caption))

    if found.metric is not None:
        name, metric = f"{found.samples:,} examples of {run.showcase.origin.split}", found.metric_name
        caption = f"Score of the same weights, read at step k; K = {found.read} is what was trained."
        draw(found.metric, name, metric, metric, caption)
    if not any(math.isnan(value) for value in found.confidence):
        metric = "probability of the answer"
        caption = "How sure the model is of its answer at step k."
        draw(found.confidence, "median over the examples", metric, f"{metric}, median,", caption)
    return made


def residual_by_step(run: ReportedRun) -> list[Drawing]:
    """How far one more step would move each state."""
    found = run.showcase.trajectory if run.showcase is not None else None
    if found is None:
        return []
    residuals = {name: torch.tensor(values, dtype=torch.float64) for name, values in found.residuals.items()}
    if not any(bool((values > 0).any()) for values in residuals.values()):
        return []
    words = (_along(f"residual of {name}", found.steps, values) for name, values in found.residuals.items())
    return [
        Drawing(
            figure=residual_along_k(residuals, list(found.steps), read=found.read),
            alt="; ".join(words),
            caption="Residual |z - T(z)| / |z| of the undamped map, median over the examples: how far one more "
            "whole step would move the state. A straight fall on this scale is steady settling.",
        )
    ]


def influence(run: ReportedRun) -> list[Drawing]:
    """Who moves whom."""
    found = run.showcase.diagnosis if run.showcase is not None else None
    if found is None or found.singular or not found.influence:
        return []
    moved = {"title": "Response to the inputs, relative", "columns": "input of", "rows": "equilibrium of"}
    return [
        Drawing(
            figure=influence_map(found.influence), alt=_cells("pushed by", found.influence),
            caption="Row: whose equilibrium moves. Column: who is pushed. Through every path, medians over samples; "
            "the diagonal is a modality's influence on itself.",
        ),
        Drawing(
            figure=influence_map(found.inputs, **moved), alt=_cells("input of", found.inputs),
            caption="By what share a state's equilibrium changes when an input changes by its own size, in a random "
            "direction. Off the diagonal: how far one modality's input reaches the other's state.",
        ),
    ]  # fmt: skip


def eigenvalues(run: ReportedRun) -> list[Drawing]:
    """Eigenvalues of dT/dz in the complex plane."""
    found = run.showcase.eigenvalues if run.showcase is not None else None
    values = torch.zeros(0) if found is None else found.values
    known = values[~values.abs().isnan()]
    if found is None or not len(known):
        return []
    return [
        Drawing(
            figure=eigenvalue_plane(values, damping=found.damping),
            alt=f"{len(known)} leading eigenvalues of {len(values)} samples in the complex plane; the largest modulus "
            f"is {float(known.abs().max()):.3f}, the unit circle is drawn.",
            caption="Inside the circle: what is disturbed in that direction dies out from step to step. Eigenvalues "
            "off the real axis turn while they shrink, as modalities do that answer each other.",
        )
    ]


def example_grids(run: ReportedRun) -> list[Drawing]:
    """The examples that are shown for one reason in one grid, a row per example and a column per step."""
    shown = run.showcase.examples if run.showcase is not None else ()
    explained = [(each.reason, found) for each in shown if (found := each.explained()) is not None]
    by_reason = {reason: [found for why, found in explained if why == reason] for reason in REASONS}
    return [_example_grid(reason, found) for reason, found in by_reason.items() if found]


def _example_grid(reason: str, explanations: Sequence[Explanation]) -> Drawing:
    first, title = explanations[0], reason.capitalize()
    words = []
    for each in explanations:
        answers = ", ".join(f"{each.said(row)} at k = {step}" for row, step in enumerate(each.steps))
        at = each.row(each.read)
        top = [f"; words that count most in {view.name} at K: {', '.join(view.top_words(at))}" for view in each.texts]
        words.append(f"{each.id}: {answers}{''.join(top)}")
    return Drawing(
        figure=explanation_grid(explanations, steps=list(first.steps), title=f"{title}, step by step"),
        alt=f"Heat maps over pictures and words, {reason}, a row per example and a column per step. "
        f"{'; '.join(words)}.",
        caption=f"{title}: what the answer rests on at k = {', '.join(map(str, first.steps))}; "
        f"K = {first.read} is read.",
        photograph=True,
        group=reason,
    )


def _along(name: str, steps: tuple[int, ...], values: Sequence[float]) -> str:
    shown = sorted({0, len(steps) // 4, len(steps) // 2, len(steps) - 1})
    return f"{name} " + ", ".join(f"{number(values[at])} at k = {steps[at]}" for at in shown)


def _cells(by: str, square: Mapping[str, Mapping[str, Tensor]]) -> str:
    cells = [f"{a} {by} {b}: {number(middle(values))}" for a, row in square.items() for b, values in row.items()]
    return "; ".join(cells)
