"""Answers of a trained run to new examples or to a table's rows, and how they are written: CSV, JSON lines, Parquet.

Spreadsheets take a cell of a CSV file that begins with = + - or @ for a formula, and would run what somebody has put
into an id or a label. Such a cell is written with an apostrophe before it, which they show as text; `csv_text` takes it
off again. Numbers stay numbers, and the other two formats are not touched.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.walk import answer as read_answer
from meq.core.solution import Stop
from meq.data.contract import Example, Split
from meq.data.findings import Finding, Findings, OnBad
from meq.data.metrics import MICRO_F1
from meq.data.table import ALL, SingleColumns
from meq.encoders import Encoder
from meq.encoders.contract import Progress
from meq.models.base import FusionModel, Output
from meq.models.heads import probabilities
from meq.records import write_bytes
from meq.runs.load import TrainedRun
from meq.runs.own_data import ReadOptions, as_features, check_encoder, encoders_of_run, examples_as_features, table_rows
from meq.training.predictions import answer_batch, answer_logits, as_parquet, batched, without_targets

SUFFIXES = (".csv", ".jsonl", ".parquet")
FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
PROBABILITIES = 20
"""With at most as many classes, each has its own column of probabilities."""


class AnswersError(ValueError):
    """Answers that cannot be written; the message says why, and what to do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a trained model says of one example."""

    id: str
    answer: str | float | tuple[str, ...] | None
    """A label, the labels of several that apply, the place of a choice, or a number; with answers per token a label
    for each of `tokens`. None if there is no answer."""
    logits: Float[Tensor, "*T C"]
    confidence: float = math.nan
    """The probability of the answer; of several labels, that of the most probable one; of tokens their mean; NaN for a
    number."""
    probabilities: Float[Tensor, "*T C"] | None = None
    """One per class; None for a number."""
    tokens: tuple[tuple[str, int], ...] = ()
    """With answers per token: the modality of each, and its place there."""
    steps: int | None = None
    """The step the state was read at; None for a model that does not iterate."""
    residuals: Mapping[str, float] = field(default_factory=dict)
    """|z - T(z)| / |z| at the read state, by modality; NaN where it is missing."""
    stop: Stop | None = None
    """Why the iteration stopped."""
    missing: tuple[str, ...] = ()
    """Modalities that the example lacks."""
    line: int | None = None
    """Where the row stands in its file."""

    @property
    def note(self) -> str:
        """What should be known before the answer is relied on."""
        words = [f"{name} is missing" for name in self.missing]
        if self.stop is Stop.DIVERGED:
            words.append("the iteration diverged, and the answer is that of its last finite state")
        if self.answer is None:
            words.append("there is no answer")
        return "; ".join(words)


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers(Sequence[Answer]):
    """Answers to the rows of a table, in its order."""

    answers: Sequence[Answer]
    labels: Sequence[str]
    modalities: Sequence[str]
    """Those that have a residual."""
    left_out: Sequence[Finding] = ()
    """Rows that could not be read, where skipping them was asked for."""

    @property
    def tokens(self) -> bool:
        """Whether answers are of tokens."""
        return any(answer.tokens for answer in self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, place: Any) -> Any:
        return self.answers[place]

    def rows(self, *, probabilities: int = PROBABILITIES) -> list[dict[str, Any]]:
        """Plain values, one dictionary per answer, all with the same keys; what is not known is None."""
        first = next((each.probabilities for each in self.answers if each.probabilities is not None), None)
        spelled = first is not None and first.ndim == 1 and len(self.labels) <= probabilities
        return [self._row(answer, self.labels if spelled else ()) for answer in self.answers]

    def save(self, path: Path | str, *, probabilities: int = PROBABILITIES, force: bool = False) -> Path:
        """Write them as .csv, .jsonl or .parquet: the whole file or none, and over another one only with `force`.

        With at most `probabilities` classes, each has a column of its own.
        """
        path = check_place(path, force=force)
        rows = self.rows(probabilities=probabilities)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".csv":
            content = _as_csv(rows)
        elif path.suffix.lower() == ".jsonl":
            lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
            content = "".join(f"{line}\n" for line in lines).encode()
        else:
            content = as_parquet({name: [row[name] for row in rows] for name in (rows[0] if rows else {})})
        write_bytes(path, content)
        return path

    def summary(self) -> dict[str, Any]:
        """Counts, for people and machines: answers by label, missing modalities, reasons of stopping."""
        single = [answer.answer for answer in self.answers if isinstance(answer.answer, str)]
        single += [
            label for each in self.answers if each.tokens and isinstance(each.answer, tuple) for label in each.answer
        ]
        return {
            "rows": len(self.answers),
            "left_out": len(self.left_out),
            "answers": dict(Counter(single).most_common()),
            "mean_confidence": _mean([answer.confidence for answer in self.answers]),
            "missing": dict(Counter(name for answer in self.answers for name in answer.missing)),
            "stopped": dict(Counter(answer.stop.name.lower() for answer in self.answers if answer.stop)),
            "mean_steps": _mean([float(answer.steps) for answer in self.answers if answer.steps is not None]),
            "without_answer": sum(answer.answer is None for answer in self.answers),
        }

    def _row(self, answer: Answer, labels: Sequence[str]) -> dict[str, Any]:
        chances = [math.nan] * len(labels) if answer.probabilities is None else answer.probabilities.tolist()
        if self.tokens:  # lists: of one length, a value per token
            sure = [] if answer.probabilities is None else answer.probabilities.amax(-1).tolist()
            named = [f"{name} {place}" for name, place in answer.tokens]
            said = list(answer.answer) if isinstance(answer.answer, tuple) else []
            per_token = {"answer": said, "tokens": named, "confidences": [_number(value) for value in sure]}
        chosen = "|".join(answer.answer) if isinstance(answer.answer, tuple) else answer.answer
        return {
            "id": answer.id,
            "line": answer.line,
            **(per_token if self.tokens else {"answer": chosen}),
            "confidence": _number(answer.confidence),
            **{f"p({label})": _number(chance) for label, chance in zip(labels, chances, strict=bool(labels))},
            "steps": answer.steps,
            **{f"residual({name})": _number(answer.residuals.get(name, math.nan)) for name in self.modalities},
            "stopped": "" if answer.stop is None else answer.stop.value,
            "note": answer.note,
        }


def check_place(path: Path | str, *, force: bool) -> Path:
    """Where answers can be written; worth asking before they are computed."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise AnswersError(f"{path}: answers are written as {', '.join(SUFFIXES)}, by the file's suffix")
    if path.is_dir():
        raise AnswersError(f"{path} is a folder")
    if path.exists() and not force:
        raise AnswersError(f"{path} is there already: choose another name, or write over it with --force (force=True)")
    return path


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    lines = []
    for row in [rows[0].keys() if rows else [], *(row.values() for row in rows)]:
        text = io.StringIO(newline="")  # with \r\n at its end, or the writer would leave a \r in a cell without quotes
        csv.writer(text, lineterminator="\r\n").writerow("" if value is None else csv_cell(value) for value in row)
        lines.append(text.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines).encode()


def csv_cell(value: Any) -> Any:
    """A value as it is written to CSV: text that a spreadsheet would run gets an apostrophe; a list is one text."""
    if isinstance(value, list):
        value = "|".join("" if each is None else str(each) for each in value)
    runs = isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value)
    return f"'{value}" if runs else value


def csv_text(cell: str) -> str:
    """A cell of text as it was before `csv_cell`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def _number(value: float) -> float | None:
    """What is not a number is not known."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


# -- asking the model --------------------------------------------------------------------------------------------------


def predict_table(
    run: TrainedRun,
    path: Path | str,
    *,
    root: Path | None = None,
    id_column: str | None = None,
    on_bad: OnBad = "raise",
    encoders: Mapping[str, str | None] | None = None,
    progress: Progress | None = None,
    steps: int | None = None,
) -> Answers:
    """Answers to the rows of a table, in its order. Columns are those of training; no label is needed.

    An empty cell is a missing modality. `encoders` says, by kind of content, where encoders lie that were read from a
    folder in training and have moved since. All rows are read at step `steps`; unless given, by the run's calibrated
    rule, or else at the model's own depth.
    """
    model = run.model_read(steps)  # a depth that cannot be had is said before anything that takes long
    findings = Findings(on_bad)
    found = encoders_of_run(run, chosen=encoders)
    single = SingleColumns(label=None, id=id_column, split=None, group=None)
    rows = table_rows(run, path, single, found, root=root, findings=findings)
    data = as_features(run, rows, found, findings=findings, reading=ReadOptions(progress=progress))
    answers = answer_all(run, data.splits[ALL], progress=progress, model=model)
    residuals = list(dict.fromkeys(name for answer in answers for name in answer.residuals))
    return Answers(answers=answers, labels=run.labels, modalities=residuals, left_out=tuple(findings))


def predict_examples(
    run: TrainedRun,
    examples: Sequence[Example],
    *,
    encoders: Mapping[str, Encoder] | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
) -> list[Answer]:
    """Answers to examples, as pictures and texts or as the features that the run's encoders make of them."""
    model = run.model_read(steps)
    if not examples:
        return []
    if encoders is None:
        contents = [content for example in examples for content in example.content.values()]
        firsts = [content[0] if isinstance(content, tuple) and content else content for content in contents]
        encoders = {} if all(isinstance(first, Tensor) for first in firsts) else encoders_of_run(run)
    for name, encoder in encoders.items():
        if name in run.task.encoders:
            check_encoder(name, encoder, run.task.encoders[name])
    return answer_all(run, examples_as_features(run, examples, encoders), batch_size=batch_size, model=model)


def answer_all(
    run: TrainedRun,
    split: Split,
    *,
    batch_size: int | None = None,
    progress: Progress | None = None,
    model: FusionModel | None = None,
) -> list[Answer]:
    """Answers to a split that is features already; in batches of the size of training unless told otherwise.

    `model` is one of `TrainedRun.model_read`; as the run is read by itself unless given.
    """
    answers: list[Answer] = []
    model = run.model_read() if model is None else model
    for part in batched(split, batch_size or run.batch_size):
        answers += _answers(run, part, model)
        if progress is not None:
            progress("answering", len(answers), len(split))
    return answers


def _answers(run: TrainedRun, part: list[Example], model: FusionModel) -> list[Answer]:
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
        for row, facts in zip(readable, _facts(run, output, batch.features), strict=True):
            answers[row] = replace(answers[row], **facts)
    return [replace(answer, missing=lacks) for answer, lacks in zip(answers, missing, strict=True)]


def _facts(run: TrainedRun, output: Output, features: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Example by example: the fields of its `Answer` that the model's output decides."""
    head, logits, solution = run.task.head, answer_logits(output), output.solution
    if output.answered is not None:
        yield from _token_facts(run, output, token_places(run.model.answering, features))
        return
    prediction, confidence = (x.tolist() for x in read_answer(logits, head))
    chances = None if head == "score" else probabilities(logits, head)
    if solution is not None:
        steps, residuals = solution.steps.tolist(), {name: x.tolist() for name, x in solution.final_residual.items()}
    for at, best in enumerate(prediction):
        facts = {"answer": _in_words(run, best, logits[at]), "logits": logits[at], "confidence": confidence[at]}
        if chances is not None:
            facts["probabilities"] = chances[at]
        if solution is not None:
            # a choice is a state of its own: of several, the chosen one is told of
            state = at * logits.shape[1] + max(0, best) if head == "choices" else at
            facts |= {"steps": steps[state], "stop": solution.stop[state]}
            facts["residuals"] = {name: values[state] for name, values in residuals.items()}
        yield facts


def _token_facts(run: TrainedRun, output: Output, places: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """The same for answers per token: those of an example's real tokens, one after the other."""
    assert output.answered is not None
    logits, solution = answer_logits(output), output.solution
    for at, real in enumerate(output.answered):
        own = logits[at][real]
        best, sure = read_answer(own, "tokens")
        said = tuple(run.labels[each] for each in best.tolist() if each >= 0)
        facts: dict[str, Any] = {
            "answer": said if said and len(said) == len(best) else None,  # a state that is not finite answers nothing
            "logits": own,
            "confidence": float(sure.mean()),
            "probabilities": probabilities(own, "tokens"),
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


def _in_words(run: TrainedRun, best: int, logits: Tensor) -> str | float | tuple[str, ...] | None:
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
