"""The kept weights of a run, scored on its own data again or on other data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from meq.data.contract import DataSet, collate
from meq.encoders.survey import Progress
from meq.experiments.runs.data import Reading, Ready, chosen_split, other_data, own_data
from meq.experiments.runs.evaluation import Evaluation, SplitScores
from meq.experiments.runs.load import TrainedRun
from meq.experiments.study import StudyError
from meq.training.evaluation import labelled, scores
from meq.training.predictions import Predictions

BATCH = 64


def evaluate_run(
    run: TrainedRun,
    data: str | None = None,
    *,
    root: Path | None = None,
    split: str | None = None,
    reading: Reading = Reading(),  # noqa: B008
) -> Evaluation:
    """Scores on every labelled split of the run's own data, or on a table with the same columns; or on one split.

    A label that training never saw is an error that names its row, or, where bad rows are skipped, is left out.
    """
    ready = (
        own_data(run, root=root, reading=reading) if data is None else other_data(run, data, root=root, reading=reading)
    )
    made = ready.data if split is None else chosen_split(ready.data, split)
    names = [name for name, part in made.splits.items() if labelled(part)]
    if not names:
        raise StudyError(f"{made.name}: nothing to score, there are no labels in {', '.join(made.splits)}")
    made = replace(made, splits={name: made.splits[name] for name in names})
    return Evaluation(
        data=made.name,
        same_data=ready.same,
        metric=made.metric.name,
        labels=tuple(made.labels),
        selected=None if run.record is None else run.record.selected,
        splits=tuple(_scored(run, ready, made, name, reading.progress) for name in names),
        left_out=len(ready.left_out),
    )


def _scored(run: TrainedRun, ready: Ready, data: DataSet, split: str, progress: Progress | None) -> SplitScores:
    predictions = predictions_of(run, data, split, progress=progress)
    recorded = run.record.metrics.get(split) if run.record is not None and ready.same else None
    return SplitScores(
        split=split,
        examples=len(predictions.ids),
        metrics=scores((data.metric, *data.also), data.head, predictions),
        recorded=recorded,
        confusion=_confusion(predictions, len(data.labels)) if data.head in ("classes", "ordinal") else None,
    )


def predictions_of(run: TrainedRun, data: DataSet, split: str, *, progress: Progress | None = None) -> Predictions:
    """Logits and targets, in batches of the size that the record's were made in: padding is the same, to the bit."""
    size = BATCH if run.record is None else int(run.record.config["batch_size"])
    examples = data.splits[split]
    ids: list[str] = []
    logits: list[Tensor] = []
    targets: list[Tensor] = []
    for start in range(0, len(examples), size):
        part = [examples[row] for row in range(start, min(start + size, len(examples)))]
        batch = collate(part, data.widths)
        with torch.no_grad():
            found = run.model(batch.features, batch.masks).logits
        if found is None:
            raise StudyError("this model was built with classes=None: it has no head to answer with")
        ids, logits, targets = ids + batch.ids, [*logits, found.float()], [*targets, batch.target]
        if progress is not None:
            progress(f"scoring {split}", len(ids), len(examples))
    return Predictions(ids=ids, logits=torch.cat(logits), target=torch.cat(targets))


def _confusion(predictions: Predictions, classes: int) -> tuple[tuple[int, ...], ...]:
    places = predictions.target.long() * classes + predictions.logits.argmax(1)
    counts = torch.bincount(places, minlength=classes * classes).reshape(classes, classes)
    return tuple(tuple(row) for row in counts.tolist())
