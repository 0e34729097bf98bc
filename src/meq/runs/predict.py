"""Answers of a trained run to new examples or to a table's rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from meq.analysis.probabilities import classes_within
from meq.analysis.walk import answer as read_answer
from meq.data.content import Picture
from meq.data.contract import Example, Split
from meq.data.findings import Findings, OnBad
from meq.data.frames import Frame, frame_of, unreadable
from meq.data.metrics import MICRO_F1
from meq.data.table import ALL, SingleColumns
from meq.data.table_files import is_table, open_table
from meq.encoders import Encoder
from meq.encoders.contract import Progress
from meq.models.base import FusionModel, Output
from meq.models.heads import probabilities
from meq.runs.answers import PROBABILITIES, SUFFIXES, Answer, Answers, AnswersError, check_place, csv_cell, csv_text
from meq.runs.drift import differences
from meq.runs.load import Run
from meq.runs.one_example import example_of
from meq.runs.own_data import (
    ReadOptions,
    as_features,
    check_encoder,
    encoders_of_run,
    examples_as_features,
    table_options,
    table_rows,
)
from meq.runs.probabilities import Applied, applied
from meq.studies.study import StudyError
from meq.training.predictions import answer_batch, answer_logits, batched, without_targets

__all__ = [
    "PROBABILITIES",
    "SUFFIXES",
    "Answer",
    "Answers",
    "AnswersError",
    "answer_all",
    "answers_to",
    "check_place",
    "csv_cell",
    "csv_text",
    "predict_contents",
    "predict_examples",
    "predict_frame",
    "predict_table",
    "token_places",
]


def answers_to(
    run: Run,
    data: Any,
    more: Sequence[Any] = (),
    *,
    root: Path | None = None,
    id_column: str | None = None,
    columns: Sequence[str] | None = None,
    steps: int | None = None,
    on_bad: OnBad = "raise",
    store: Path | None = None,
    encoders: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    raw: bool = False,
    coverage: float | None = None,
) -> Answers | Answer:
    """Answers to a table on disk or in memory, to examples, or the answer to one example: by what was given.

    A table may be followed by the folder that its paths start from; what is no table is the content of one example.
    Probabilities are those of the run's temperature, or `raw`. With `coverage`, such as 0.9, every answer has a set of
    classes, or an interval, that holds the true one so often.
    """
    given: dict[str, Any] = {"steps": steps, "raw": raw, "coverage": coverage}
    frame = frame_of(data)
    is_file = isinstance(data, str | Path) and is_table(data)
    if frame is not None or is_file:
        if len(more) > 1 or (more and root is not None):
            raise StudyError(f"a table is followed by one folder at most, got {', '.join(map(repr, map(str, more)))}")
        asked: dict[str, Any] = {"id_column": id_column, "columns": columns, "on_bad": on_bad, **given}
        asked |= {"root": Path(more[0]) if more else root, "encoders": encoders, "store": store}
        if frame is not None:
            return predict_frame(run, frame, **asked)
        return predict_table(run, data, **asked, progress=progress)
    if isinstance(data, str | Path | Picture):
        return predict_contents(run, [data, *more], encoders=encoders, store=store, **given)
    if isinstance(data, Sequence) and all(isinstance(each, Example) for each in data):
        found = predict_examples(run, data, encoders=encoders, batch_size=batch_size, **given)
        how = applied(run, run.model_read(steps), raw=raw, coverage=coverage)
        return Answers(answers=found, labels=run.labels, modalities=residual_names(found), applied=how)
    raise unreadable(data)


def residual_names(answers: Sequence[Answer]) -> list[str]:
    """The modalities that have a residual."""
    return list(dict.fromkeys(name for answer in answers for name in answer.residuals))


def predict_table(
    run: Run,
    path: Path | str,
    *,
    root: Path | None = None,
    id_column: str | None = None,
    on_bad: OnBad = "raise",
    encoders: Mapping[str, str | None] | None = None,
    progress: Progress | None = None,
    steps: int | None = None,
    columns: Sequence[str] | None = None,
    store: Path | None = None,
    raw: bool = False,
    coverage: float | None = None,
) -> Answers:
    """Answers to the rows of a table, in its order. Columns are those of training; no label is needed.

    An empty cell is a missing modality. `encoders` says, by kind of content, where encoders lie that were read from a
    folder in training and have moved since. All rows are read at step `steps`; unless given, by the run's calibrated
    rule, or else at the model's own depth. `columns` of the table stand beside the answers: all unless named. What is
    encoded is kept in the `store`, where one is given. See `answers_to` for `raw` and `coverage`.
    """
    beside = _columns_beside(run, path, columns)
    model = run.model_read(steps)  # a depth that cannot be had is said before anything that takes long
    how = applied(run, model, raw=raw, coverage=coverage)
    findings = Findings(on_bad)
    found = encoders_of_run(run, chosen=encoders)
    single = SingleColumns(label=None, id=id_column, split=None, group=None)
    rows = table_rows(run, path, single, found, root=root, findings=findings)
    data = as_features(run, rows, found, findings=findings, reading=ReadOptions(progress=progress, store=store))
    answers = answer_all(run, data.splits[ALL], progress=progress, model=model, how=how)
    as_trained = steps is None and run.anytime is None  # read elsewhere, answers may be less sure of the same rows
    logits = [answer.logits for answer in answers if answer.answer is not None] if as_trained else []
    return Answers(
        answers=answers,
        labels=run.labels,
        modalities=residual_names(answers),
        left_out=tuple(findings),
        inputs=_cells_beside(run, path, beside, answers),
        applied=how,
        drift=tuple(differences(run.task.profile, rows.splits[ALL], logits, head=run.task.head)),
    )


def predict_frame(
    run: Run,
    frame: Frame,
    *,
    root: Path | None = None,
    id_column: str | None = None,
    on_bad: OnBad = "raise",
    encoders: Mapping[str, str | None] | None = None,
    steps: int | None = None,
    columns: Sequence[str] | None = None,
    store: Path | None = None,
    raw: bool = False,
    coverage: float | None = None,
) -> Answers:
    """Answers to the rows of a table in memory, by their names there. Paths begin at `root`, or where Python runs."""
    with TemporaryDirectory(prefix="meq-frame-") as scratch:
        file = frame.write(Path(scratch))
        begin = root or file.root or Path.cwd()
        with file.named_rows():
            found = predict_table(
                run,
                file.path,
                root=begin,
                id_column=id_column,
                on_bad=on_bad,
                encoders=encoders,
                steps=steps,
                columns=columns,
                store=store,
                raw=raw,
                coverage=coverage,
            )
    names = [file.name_of(answer.line) for answer in found if answer.line is not None]
    own = found.answers
    if id_column is None:
        own = [replace(answer, id=str(name)) for answer, name in zip(found, names, strict=True)]
    return replace(found, answers=own, names=names, left_out=tuple(map(file.named, found.left_out)))


def predict_contents(
    run: Run,
    contents: Sequence[Any],
    *,
    encoders: Mapping[str, str | None] | None = None,
    steps: int | None = None,
    store: Path | None = None,
    raw: bool = False,
    coverage: float | None = None,
) -> Answer:
    """The answer to one example, given as a picture's file and a text, or as several texts."""
    model = run.model_read(steps)
    how = applied(run, model, raw=raw, coverage=coverage)
    found = encoders_of_run(run, chosen=encoders, store=store)
    kinds = {name: found[name].kind if name in found else "features" for name in run.task.widths}
    example = example_of(kinds, contents)
    (answer,) = answer_all(run, examples_as_features(run, [example], found), model=model, how=how)
    return replace(answer, labels=run.labels)


def _columns_beside(run: Run, path: Path | str, columns: Sequence[str] | None) -> list[str]:
    """The columns of the table that stand beside the answers; one that it does not have is said now."""
    file = open_table(path, delimiter=table_options(run).get("delimiter"))
    if columns is None:
        return file.readable()
    return [column for found in file.expand(list(columns)).values() for column in found] if columns else []


def _cells_beside(
    run: Run, path: Path | str, columns: Sequence[str], answers: Sequence[Answer]
) -> list[dict[str, Any]]:
    """The cells of those columns, row by row: the table is gone through once more, which no reader has to know of."""
    if not columns:
        return []
    wanted = {answer.line for answer in answers}
    file = open_table(path, delimiter=table_options(run).get("delimiter"))
    found = {
        line: dict(zip(columns, cells, strict=True))
        for line, cells in file.rows(columns, Findings("skip"))
        if line in wanted
    }
    return [found[answer.line] for answer in answers if answer.line is not None]


def predict_examples(
    run: Run,
    examples: Sequence[Example],
    *,
    encoders: Mapping[str, Encoder] | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    raw: bool = False,
    coverage: float | None = None,
) -> list[Answer]:
    """Answers to examples, as pictures and texts or as the features that the run's encoders make of them."""
    model = run.model_read(steps)
    how = applied(run, model, raw=raw, coverage=coverage)
    if not examples:
        return []
    if encoders is None:
        contents = [content for example in examples for content in example.content.values()]
        firsts = [content[0] if isinstance(content, tuple) and content else content for content in contents]
        encoders = {} if all(isinstance(first, Tensor) for first in firsts) else encoders_of_run(run)
    for name, encoder in encoders.items():
        if name in run.task.encoders:
            check_encoder(name, encoder, run.task.encoders[name])
    return answer_all(run, examples_as_features(run, examples, encoders), batch_size=batch_size, model=model, how=how)


def answer_all(
    run: Run,
    split: Split,
    *,
    batch_size: int | None = None,
    progress: Progress | None = None,
    model: FusionModel | None = None,
    how: Applied | None = None,
) -> list[Answer]:
    """Answers to a split that is features already; in batches of the size of training unless told otherwise.

    `model` is one of `Run.model_read`; as the run is read by itself unless given. `how` is what is done to
    probabilities; unless given, what the run's own calibration says.
    """
    answers: list[Answer] = []
    model = run.model_read() if model is None else model
    how = applied(run, model) if how is None else how
    for part in batched(split, batch_size or run.batch_size):
        answers += _answers(run, part, model, how)
        if progress is not None:
            progress("answering", len(answers), len(split))
    return answers


def _answers(run: Run, part: list[Example], model: FusionModel, how: Applied) -> list[Answer]:
    """Examples with nothing to read in them get no answer, and leave the others alone."""
    missing = [tuple(name for name in run.task.widths if not _has(example, name)) for example in part]
    readable = [row for row, lacks in enumerate(missing) if len(lacks) < len(run.task.widths)]
    nothing = torch.full((max(1, len(run.labels)),), math.nan)
    lines = [line if isinstance(line := each.facts.get("line"), int) else None for each in part]
    answers = [
        Answer(id=each.id, answer=None, logits=nothing, line=line) for each, line in zip(part, lines, strict=True)
    ]
    if readable:
        batch, output = answer_batch(model, without_targets([part[row] for row in readable]), run.task.widths)
        for row, facts in zip(readable, _facts(run, output, batch.features, how), strict=True):
            answers[row] = replace(answers[row], **facts)
    return [replace(answer, missing=lacks) for answer, lacks in zip(answers, missing, strict=True)]


def _facts(run: Run, output: Output, features: Mapping[str, Tensor], how: Applied) -> Iterator[dict[str, Any]]:
    """Example by example: the fields of its `Answer` that the model's output decides."""
    head, logits, solution = run.task.head, answer_logits(output), output.solution
    if output.answered is not None:
        yield from _token_facts(run, output, token_places(run.model.answering, features), how)
        return
    tempered = logits if head == "score" else logits / how.temperature  # the order of classes stays
    prediction, confidence = (x.tolist() for x in read_answer(tempered, head))
    chances = None if head == "score" else probabilities(tempered, head)
    covered = _covered(run, logits, how)
    if solution is not None:
        steps, residuals = solution.steps.tolist(), {name: x.tolist() for name, x in solution.final_residual.items()}
        stops = solution.stop  # of all rows: it is made anew whenever it is asked for
    for at, best in enumerate(prediction):
        facts = {"answer": _in_words(run, best, logits[at]), "logits": logits[at], "confidence": confidence[at]}
        if chances is not None:
            facts["probabilities"] = chances[at]
        if best >= 0:
            facts |= covered[at]
        if solution is not None:
            # a choice is a state of its own: of several, the chosen one is told of
            state = at * logits.shape[1] + max(0, best) if head == "choices" else at
            facts |= {"steps": steps[state], "stop": stops[state]}
            facts["residuals"] = {name: values[state] for name, values in residuals.items()}
        yield facts


def _covered(run: Run, logits: Tensor, how: Applied) -> list[dict[str, Any]]:
    """By example: the field of its `Answer` that holds what is within the promised distance of it."""
    if how.promise is None:
        return [{}] * len(logits)
    far = how.promise.threshold
    if run.task.head == "score":
        return [{"interval": (value - far, value + far)} for value in logits[:, 0].double().tolist()]
    sets = classes_within(logits, run.task.head, far)
    named = run.task.head != "choices"
    return [{"among": tuple(run.labels[each] if named else str(each) for each in kept)} for kept in sets]


def _token_facts(run: Run, output: Output, places: Sequence[tuple[str, int]], how: Applied) -> Iterator[dict[str, Any]]:
    """The same for answers per token: those of an example's real tokens, one after the other."""
    assert output.answered is not None
    logits, solution = answer_logits(output), output.solution
    for at, real in enumerate(output.answered):
        own = logits[at][real]
        best, sure = read_answer(own / how.temperature, "tokens")
        said = tuple(run.labels[each] for each in best.tolist() if each >= 0)
        facts: dict[str, Any] = {
            "answer": said if said and len(said) == len(best) else None,  # a state that is not finite answers nothing
            "logits": own,
            "confidence": float(sure.mean()),
            "probabilities": probabilities(own / how.temperature, "tokens"),
            "tokens": tuple(places[place] for place in real.nonzero().flatten().tolist()),
        }
        if solution is not None:
            facts |= {"steps": int(solution.steps[at]), "stop": solution.stop[at]}
            facts["residuals"] = {name: float(x[at]) for name, x in solution.final_residual.items()}
        yield facts


def token_places(answering: Sequence[str], features: Mapping[str, Tensor]) -> list[tuple[str, int]]:
    """What the answers of a batch belong to, in the order of the logits: modalities, and places of tokens in them."""
    lengths = {name: features[name].shape[1] if name in features else 1 for name in answering}
    return [(name, place) for name, length in lengths.items() for place in range(length)]


def _in_words(run: Run, best: int, logits: Tensor) -> str | float | tuple[str, ...] | None:
    """The answer as a label, several of them, the place of a choice, or a number."""
    if best < 0:  # the logits are not finite
        return None
    if run.task.head == "score":
        return float(logits[0])
    if run.task.head == "labels" and run.task.metric == MICRO_F1.name:  # others, as VQA, ask for the best of them
        return tuple(label for label, x in zip(run.labels, logits.tolist(), strict=True) if x > 0)
    return str(best) if run.task.head == "choices" else run.labels[best]


def _has(example: Example, name: str) -> bool:
    content = example.content.get(name)
    if isinstance(content, tuple):
        return any(len(choice) > 0 for choice in content if isinstance(choice, Tensor))
    return content is not None and not (isinstance(content, Tensor) and content.numel() == 0)
