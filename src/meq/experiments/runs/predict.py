"""Answers of a trained run to new examples, or to the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meq.analysis.trajectory import answer as read_answer
from meq.core.solution import Stop
from meq.data.contract import DataSet, Example, Modality, Split, collate, features
from meq.data.findings import Findings, OnBad
from meq.data.metrics import ACCURACY
from meq.data.table_metrics import MICRO_F1
from meq.data.table_new import ALL, new_rows
from meq.data.table_rows import SingleColumns
from meq.encoders import Encoder
from meq.encoders.survey import Progress
from meq.experiments.runs.answers import Answer, Answers
from meq.experiments.runs.data import Reading, as_features, known_of
from meq.experiments.runs.encoders import encoders_of_run
from meq.experiments.runs.load import TrainedRun, check_encoder
from meq.models.base import Output

BATCH = 64
NEW = "new"


def predict_table(
    run: TrainedRun,
    path: Path | str,
    *,
    root: Path | None = None,
    id_column: str | None = None,
    on_bad: OnBad = "raise",
    encoders: Mapping[str, str | None] | None = None,
    progress: Progress | None = None,
) -> Answers:
    """Answers to the rows of a table, in its order. Columns are those of training; no label is needed.

    An empty cell is a missing modality. `encoders` says, by kind of content, where encoders lie that were read from a
    folder in training and have moved since.
    """
    findings = Findings(on_bad)
    found = encoders_of_run(run, chosen=encoders)
    single = SingleColumns(label=None, id=id_column, split=None, group=None)
    delimiter = None if run.request is None else run.request.options.get("delimiter")
    known = known_of(run, found)
    rows = new_rows(path, known, root=root, single=single, delimiter=delimiter, findings=findings)
    _, data, more = as_features(run, rows, found, reading=Reading(on_bad=on_bad, progress=progress))
    answers = answer_all(run, data.splits[ALL], progress=progress)
    residuals = list(dict.fromkeys(name for answer in answers for name in answer.residuals))
    return Answers(answers=answers, labels=run.labels, modalities=residuals, left_out=(*findings, *more))


def predict_examples(
    run: TrainedRun,
    examples: Sequence[Example],
    *,
    encoders: Mapping[str, Encoder] | None = None,
    batch_size: int = BATCH,
) -> list[Answer]:
    """Answers to examples, as pictures and texts or as the features that the run's encoders make of them."""
    if not examples:
        return []
    if encoders is None:
        raw = any(_is_raw(content) for example in examples for content in example.content.values())
        encoders = encoders_of_run(run) if raw else {}
    for name, encoder in encoders.items():
        if name in run.task.encoders:
            check_encoder(name, encoder, run.task.encoders[name])
    modalities: dict[str, Modality] = {name: features(width) for name, width in run.task.widths.items()}
    modalities |= {name: Modality(kind=encoder.kind) for name, encoder in encoders.items()}  # type: ignore[arg-type]
    data = DataSet(
        name=NEW,
        splits={NEW: examples},
        modalities=modalities,
        labels=run.labels,
        head=run.task.head,
        metric=ACCURACY,
    )
    return answer_all(run, as_features(run, data, encoders)[1].splits[NEW], batch_size=batch_size)


def answer_all(
    run: TrainedRun, split: Split, *, batch_size: int = BATCH, progress: Progress | None = None
) -> list[Answer]:
    """Answers to a split that is features already."""
    answers: list[Answer] = []
    for start in range(0, len(split), batch_size):
        part = [split[row] for row in range(start, min(start + batch_size, len(split)))]
        answers += _answers(run, part)
        if progress is not None:
            progress("answering", len(answers), len(split))
    return answers


def _answers(run: TrainedRun, part: list[Example]) -> list[Answer]:
    """Examples with nothing to read in them get no answer, and leave the others alone."""
    missing = [tuple(name for name in run.task.widths if not _has(example, name)) for example in part]
    readable = [row for row, lacks in enumerate(missing) if len(lacks) < len(run.task.widths)]
    answered: dict[int, Answer] = {}
    if readable:
        batch = collate([replace(part[row], target=torch.zeros(())) for row in readable], run.task.widths)
        with torch.no_grad():
            told = _Told.of(run, run.model(batch.features, batch.masks))
        answered = {row: told.answer(at, part[row], missing[row]) for at, row in enumerate(readable)}
    nothing = torch.full((max(1, len(run.labels)),), math.nan)
    return [
        answered.get(row) or Answer(id=each.id, answer=None, logits=nothing, missing=missing[row], line=_line(each))
        for row, each in enumerate(part)
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Told:
    """What a model said of one batch."""

    run: TrainedRun
    logits: Tensor
    prediction: list[int]
    confidence: list[float]
    steps: list[int] | None
    stops: list[Stop] | None
    """Of each state, as the steps; None for a model that does not iterate."""
    residuals: Mapping[str, list[float]]

    @classmethod
    def of(cls, run: TrainedRun, output: Output) -> _Told:
        if output.logits is None:
            raise ValueError("this model was built with classes=None: it has no head to answer with")
        logits = output.logits.float()
        prediction, confidence = read_answer(logits, run.task.head)
        solution = output.solution
        residuals = {} if solution is None else {name: x.tolist() for name, x in solution.final_residual.items()}
        return cls(
            run=run,
            logits=logits,
            prediction=prediction.tolist(),
            confidence=confidence.tolist(),
            steps=None if solution is None else solution.steps.tolist(),
            stops=None if solution is None else solution.stop,
            residuals=residuals,
        )

    def answer(self, at: int, example: Example, missing: tuple[str, ...]) -> Answer:
        logits = self.logits[at]
        # a choice is a state of its own: of several, the chosen one is told of
        state = at if self.run.task.head != "choices" else at * len(logits) + max(0, self.prediction[at])
        return Answer(
            id=example.id,
            answer=self._said(at),
            logits=logits,
            confidence=self.confidence[at],
            probabilities=self._chances(logits),
            steps=None if self.steps is None else self.steps[state],
            residuals={name: values[state] for name, values in self.residuals.items()},
            stop=None if self.stops is None else self.stops[state],
            missing=missing,
            line=_line(example),
        )

    def _said(self, at: int) -> str | float | tuple[str, ...] | None:
        head, best = self.run.task.head, self.prediction[at]
        if best < 0:  # the logits are not finite
            return None
        if head == "score":
            return float(self.logits[at, 0])
        if head == "labels" and self.run.task.metric == MICRO_F1.name:  # others, as VQA, ask for the best of them
            return tuple(label for label, x in zip(self.run.labels, self.logits[at].tolist(), strict=True) if x > 0)
        return str(best) if head == "choices" else self.run.labels[best]

    def _chances(self, logits: Tensor) -> Tensor | None:
        if self.run.task.head == "score":
            return None
        return logits.sigmoid() if self.run.task.head == "labels" else logits.softmax(0)


def _is_raw(content: Any) -> bool:
    return not isinstance(content[0] if isinstance(content, tuple) and content else content, Tensor)


def _has(example: Example, name: str) -> bool:
    content = example.content.get(name)
    if isinstance(content, tuple):
        return any(len(choice) > 0 for choice in content if isinstance(choice, Tensor))
    return content is not None and not (isinstance(content, Tensor) and content.numel() == 0)


def _line(example: Example) -> int | None:
    line = example.facts.get("line")
    return line if isinstance(line, int) else None
