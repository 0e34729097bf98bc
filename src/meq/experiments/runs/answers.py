"""What a trained run says of new examples, and how it is written down: CSV, JSON lines or Parquet.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from meq.core.solution import Stop
from meq.data.findings import Finding
from meq.files import write_bytes

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
    """A label, the labels of several that apply, the place of a choice, or a number; None if there is no answer."""
    logits: Float[Tensor, " C"]
    confidence: float = math.nan
    """The probability of the answer; of several labels, that of the most probable one; NaN for a number."""
    probabilities: Float[Tensor, " C"] | None = None
    """One per class; None for a number."""
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

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, place: Any) -> Any:
        return self.answers[place]

    def rows(self, *, probabilities: int = PROBABILITIES) -> list[dict[str, Any]]:
        """Plain values, one dictionary per answer, all with the same keys; what is not known is None."""
        spelled = self.answers and self.answers[0].probabilities is not None and len(self.labels) <= probabilities
        return [self._row(answer, self.labels if spelled else ()) for answer in self.answers]

    def save(self, path: Path | str, *, probabilities: int = PROBABILITIES, force: bool = False) -> Path:
        """Write them as .csv, .jsonl or .parquet: the whole file or none, and over another one only with `force`.

        With at most `probabilities` classes, each has a column of its own.
        """
        path = check_place(path, force=force)
        rows = self.rows(probabilities=probabilities)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, {".csv": _as_csv, ".jsonl": _as_jsonl, ".parquet": _as_parquet}[path.suffix.lower()](rows))
        return path

    def summary(self) -> dict[str, Any]:
        """Counts, for people and machines: answers by label, missing modalities, reasons of stopping."""
        single = [answer.answer for answer in self.answers if isinstance(answer.answer, str)]
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
        chances = [] if answer.probabilities is None else answer.probabilities.tolist()
        chosen = "|".join(answer.answer) if isinstance(answer.answer, tuple) else answer.answer
        return {
            "id": answer.id,
            "line": answer.line,
            "answer": chosen,
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
    table = [list(rows[0]) if rows else [], *(list(row.values()) for row in rows)]
    return "".join(map(_csv_line, table)).encode()


def _csv_line(row: Sequence[Any]) -> str:
    """The line is made with \\r\\n at its end, or the writer would leave a \\r inside a cell without quotes."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow("" if value is None else csv_cell(value) for value in row)
    return text.getvalue().removesuffix("\r\n") + "\n"


def csv_cell(value: Any) -> Any:
    """A value as it is written to CSV: text that a spreadsheet would run gets an apostrophe."""
    runs = isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value)
    return f"'{value}" if runs else value


def csv_text(cell: str) -> str:
    """A cell of text as it was before `csv_cell`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def _as_jsonl(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()


def _as_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    columns = {name: pa.array([row[name] for row in rows]) for name in (rows[0] if rows else {})}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _number(value: float) -> float | None:
    """What is not a number is not known."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
