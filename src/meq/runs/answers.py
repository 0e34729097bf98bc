"""Answers of a trained run, as a table: in memory, as a DataFrame, and how they are written: CSV, JSON lines, Parquet.

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from meq.analysis.tables import text_table
from meq.core.solution import Stop
from meq.data.findings import Finding
from meq.data.frames import plain_cell
from meq.errors import printable, shown
from meq.records import write_bytes
from meq.runs.drift import Difference
from meq.runs.probabilities import Applied
from meq.showing import Shown, Tabular
from meq.training.predictions import as_parquet

SUFFIXES = (".csv", ".jsonl", ".parquet")
FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
PROBABILITIES = 20
"""With at most as many classes, each has its own column of probabilities."""
PRINTED = 20
"""Rows of a printed table."""
LONGEST_CELL = 60
"""Characters of a cell in it."""


class AnswersError(ValueError):
    """Answers that cannot be written; the message says why, and what to do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer(Shown):
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
    """One per class, by the run's temperature where it has one; None for a number."""
    among: tuple[str, ...] | None = None
    """Where coverage was asked for: the classes among which the true one is, as often as promised."""
    interval: tuple[float, float] | None = None
    """The same for a number: between which the true one lies."""
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
    labels: Sequence[str] = ()
    """What the probabilities are of; none for numbers, for choices and for answers per token."""

    @property
    def note(self) -> str:
        """What should be known before the answer is relied on."""
        words = [f"{name} is missing" for name in self.missing]
        if self.stop is Stop.DIVERGED:
            words.append("the iteration diverged, and the answer is that of its last finite state")
        if self.answer is None:
            words.append("there is no answer")
        return "; ".join(words)

    @property
    def said(self) -> str:
        """The answer as one text; a number with six digits."""
        if isinstance(self.answer, tuple):
            return "|".join(self.answer)
        if isinstance(self.answer, float):
            return f"{self.answer:.6g}"
        return "no answer" if self.answer is None else self.answer

    @property
    def chances(self) -> dict[str, float]:
        """The probability of each label, the largest first; empty for numbers and for answers per token."""
        if self.probabilities is None or self.probabilities.ndim != 1:
            return {}
        labels = self.labels if len(self.labels) == len(self.probabilities) else range(len(self.probabilities))
        found = zip(map(str, labels), self.probabilities.tolist(), strict=True)
        return dict(sorted(found, key=lambda pair: -pair[1]))

    def __str__(self) -> str:
        sure = f" ({self.confidence:.3f})" if math.isfinite(self.confidence) else ""
        others = [f"{shown(name, LONGEST_CELL)} {chance:.3f}" for name, chance in list(self.chances.items())[:PRINTED]]
        stop = "" if self.stop in (None, Stop.BUDGET) else f", {self.stop.value}"  # that all were taken is usual
        if self.among is not None:
            sure += f", among {shown('|'.join(self.among))}"
        if self.interval is not None:
            sure += f", from {self.interval[0]:.6g} to {self.interval[1]:.6g}"
        lines = [f"{shown(self.said)}{sure}", *([f"probabilities: {', '.join(others)}"] if others else [])]
        lines += [] if self.steps is None else [f"read after {self.steps} steps{stop}"]
        return "\n".join([*lines, *([f"note: {self.note}"] if self.note else [])])

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not known is None."""
        return {
            "id": self.id,
            "answer": list(self.answer) if isinstance(self.answer, tuple) else self.answer,
            "confidence": _number(self.confidence),
            "probabilities": {name: _number(chance) for name, chance in self.chances.items()},
            **({} if self.among is None else {"set": list(self.among)}),
            **({} if self.interval is None else {"low": self.interval[0], "high": self.interval[1]}),
            "steps": self.steps,
            "residuals": {name: _number(value) for name, value in self.residuals.items()},
            "stopped": None if self.stop is None else self.stop.value,
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers(Tabular, Sequence[Answer]):
    """Answers to the rows of a table, in its order."""

    answers: Sequence[Answer]
    labels: Sequence[str]
    modalities: Sequence[str]
    """Those that have a residual."""
    left_out: Sequence[Finding] = ()
    """Rows that could not be read, where skipping them was asked for."""
    inputs: Sequence[Mapping[str, Any]] = ()
    """By answer: the cells of the table's own columns that are to stand beside it; none where none were asked for."""
    names: Sequence[Any] | None = None
    """By answer: the row's name in the DataFrame that it came from."""
    applied: Applied = Applied()  # noqa: RUF009, it is frozen
    """What was done to probabilities, and what sets promise."""
    drift: Sequence[Difference] = ()
    """Where the table is unlike the data of training; each is a sentence, `str(difference)`."""

    @property
    def tokens(self) -> bool:
        """Whether answers are of tokens."""
        return any(answer.tokens for answer in self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, place: Any) -> Any:
        return self.answers[place]

    def rows(self, *, probabilities: int = PROBABILITIES) -> list[dict[str, Any]]:
        """Plain values, one dictionary per answer, all with the same keys; what is not known is None.

        The table's own columns stand before the answer; one that is called like a column of ours, such as `note`, is
        `input(note)`.
        """
        first = next((each.probabilities for each in self.answers if each.probabilities is not None), None)
        spelled = first is not None and first.ndim == 1 and len(self.labels) <= probabilities
        rows = [self._row(answer, self.labels if spelled else ()) for answer in self.answers]
        return [_with_inputs(row, own) for row, own in zip(rows, self.inputs, strict=True)] if self.inputs else rows

    def row_names(self) -> Sequence[Any] | None:
        return self.names

    def remarks(self) -> list[str]:
        return [*summary_lines(self.summary()), *self.warnings()]

    def warnings(self) -> list[str]:
        """Where the table is unlike the data of training, in sentences that can be printed."""
        return [printable(f"unlike the data of training: {each}") for each in self.drift]

    def __str__(self) -> str:
        header = ["id", "answer", "confidence", "note"]
        cells = [
            [each.id, each.said, f"{each.confidence:.3f}" if math.isfinite(each.confidence) else "", each.note]
            for each in self.answers[:PRINTED]
        ]
        more = len(self.answers) - PRINTED
        table = text_table(header, [[shown(cell, LONGEST_CELL) for cell in row] for row in cells])
        lines = [table, *([f"and {more:,} more rows"] if more > 0 else [])]
        return "\n".join([*lines, *self.remarks()])

    def save(self, path: Path | str, *, probabilities: int = PROBABILITIES, force: bool = False) -> Path:
        """Write them as .csv, .jsonl or .parquet: the whole file or none, and over another one only with `force`.

        With at most `probabilities` classes, each has a column of its own.
        """
        path = check_place(path, force=force)
        as_csv = path.suffix.lower() == ".csv"
        shown = replace(self, inputs=[_lists_as_text(own) for own in self.inputs]) if as_csv else self
        rows = shown.rows(probabilities=probabilities)
        path.parent.mkdir(parents=True, exist_ok=True)
        if as_csv:
            content = _as_csv(rows)
        elif path.suffix.lower() == ".jsonl":
            lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
            content = "".join(f"{line}\n" for line in lines).encode()
        else:
            content = as_parquet({name: _alike([row[name] for row in rows]) for name in (rows[0] if rows else {})})
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
            "calibration": list(self.applied.words),
            "drift": [asdict(each) for each in self.drift],
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
            **self._covered(answer),
            "steps": answer.steps,
            **{f"residual({name})": _number(answer.residuals.get(name, math.nan)) for name in self.modalities},
            "stopped": "" if answer.stop is None else answer.stop.value,
            "note": answer.note,
        }

    def _covered(self, answer: Answer) -> dict[str, Any]:
        """The set or the interval of an answer, where they were asked for."""
        if self.applied.promise is None:
            return {}
        if not self.applied.intervals:
            return {"set": None if answer.among is None else "|".join(answer.among)}
        low, high = answer.interval or (math.nan, math.nan)
        return {"low": _number(low), "high": _number(high)}


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The counts of `Answers.summary` in words; the file that they were written to, where it is named there."""
    place = f": {summary['file']}" if "file" in summary else ""
    lines = [f"{summary['rows']:,} rows answered{place}"]
    if summary["answers"]:
        first = list(summary["answers"].items())[:12]
        more = len(summary["answers"]) - len(first)
        lines.append(
            "answers: "
            + ", ".join(f"{printable(answer)} {count:,}" for answer, count in first)
            + (f", {more} more" if more else "")
        )
    if summary["mean_confidence"] is not None:
        lines.append(f"mean confidence: {summary['mean_confidence']:.3f}")
    lines += summary["calibration"]
    if summary["mean_steps"] is not None:
        reasons = [f"{count:,} stopped by {name}" for name, count in summary["stopped"].items()]
        usual = list(summary["stopped"]) == ["budget"]  # all rows were read at one depth
        lines.append(f"mean steps: {summary['mean_steps']:.1f}" + ("" if usual else f" ({', '.join(reasons)})"))
    for name, count in summary["missing"].items():
        lines.append(f"{name} is missing in {count:,} rows")
    if summary["without_answer"]:
        lines.append(f"without an answer: {summary['without_answer']:,}; their notes say why")
    return lines


def _with_inputs(row: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """id and line, then the table's own cells, then the answer."""
    named = {f"input({name})" if name in row else name: _finite(plain_cell(cell)) for name, cell in own.items()}
    first = {name: row[name] for name in ("id", "line")}
    return {**first, **named, **{name: value for name, value in row.items() if name not in first}}


def _finite(cell: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(cell, list):
        return [_finite(each) for each in cell]
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _lists_as_text(own: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of numbers as JSON, which tables are read with again."""
    plain = {name: _finite(plain_cell(cell)) for name, cell in own.items()}
    return {name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in plain.items()}


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


def _alike(cells: list[Any]) -> list[Any]:
    """A column of one kind, as Parquet needs it; of several kinds, as JSON lines may have them, all are texts."""
    import pyarrow as pa  # type: ignore[import-untyped]

    try:
        pa.array(cells)
    except (pa.ArrowException, OverflowError):
        return [cell if cell is None or isinstance(cell, str) else json.dumps(cell) for cell in cells]
    return cells


def _number(value: float) -> float | None:
    """What is not a number is not known."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
