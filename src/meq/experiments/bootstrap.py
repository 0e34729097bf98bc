"""A paired bootstrap over examples: how far the difference of two arms depends on which examples there are.

Examples are drawn with replacement; a drawn example brings the answers of both arms and of all seeds with it. For every
draw the metric is computed anew for each run, then the difference arm minus reference for each seed, then the mean over
seeds. The interval is the middle 95 % of these. Draws depend on the number of examples only, so that all arms see the
same ones, and tables made again are the same bytes: bounds are rounded to digits that no processor's sums reach.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from meq.experiments.compare import Records
from meq.experiments.metrics import resampled
from meq.experiments.study import Study, run_place
from meq.training.predictions import Predictions, read_predictions
from meq.training.record import RunRecord

DRAWS, SEED = 2000, 0
LEVELS = (0.025, 0.975)
DIGITS = 6
ENTRIES = 4_000_000
"""Of the table of counts, draws by examples, that is held at a time."""

Run = tuple[str, int]
Numbers: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int16]
Answers = Callable[[str, int, str], Predictions | None]
"""From arm, seed and split to what was answered; None where that was not kept."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An arm against the reference, on one split by one metric."""

    arm: str
    seeds: int
    """Pairs of runs."""
    examples: int
    difference: float
    """Mean over paired seeds, of the recorded scores."""
    low: float | None
    """None where the metric is no number for most of the draws, or the two arms answered other examples."""
    high: float | None


def answers_of(folder: Path) -> Answers:
    """What the runs of a study's folder have answered."""

    def read(arm: str, seed: int, split: str) -> Predictions | None:
        path = folder / run_place(arm, seed) / "predictions" / f"{split}.parquet"
        return read_predictions(path) if path.is_file() else None

    return read


def intervals(
    study: Study, records: Records, answers: Answers, *, split: str, metrics: Sequence[str]
) -> dict[str, list[Interval]]:
    """By metric: every arm but the reference, in the study's order; arms without a pair of runs are left out."""
    drawn: dict[tuple[Run, str], Numbers] = {}
    examples: dict[Run, tuple[int, bytes]] = {}
    counts: list[Counts] = []
    size = 0
    for run, record in records.items():
        given = answers(*run, split) if record.scored and split in record.metrics else None
        if given is None:
            continue
        if size != len(given.ids):
            size, counts = len(given.ids), list(_counts(len(given.ids)))
        examples[run] = (size, _stamp(given))
        for metric in metrics:
            drawn[run, metric] = np.concatenate([resampled(record, metric, given, part) for part in counts])
    others = [arm.name for arm in study.arms if arm.name != study.reference]
    found = {
        metric: [_interval(study, records, arm, (split, metric), drawn=drawn, examples=examples) for arm in others]
        for metric in metrics
    }
    return {metric: [each for each in lines if each is not None] for metric, lines in found.items()}


def _interval(
    study: Study,
    records: Records,
    arm: str,
    score: tuple[str, str],
    *,
    drawn: Mapping[tuple[Run, str], Numbers],
    examples: Mapping[Run, tuple[int, bytes]],
) -> Interval | None:
    split, metric = score
    pairs = [((arm, seed), (study.reference, seed)) for seed in study.seeds]
    pairs = [(mine, theirs) for mine, theirs in pairs if (mine, metric) in drawn and (theirs, metric) in drawn]
    if not pairs:
        return None
    same = all(examples[mine] == examples[theirs] for mine, theirs in pairs)
    moved = [drawn[mine, metric] - drawn[theirs, metric] for mine, theirs in pairs] if same else []
    low, high = _bounds(np.mean(moved, axis=0)) if moved else (None, None)
    difference = [
        _score(records[mine], split, metric) - _score(records[theirs], split, metric) for mine, theirs in pairs
    ]
    count, _ = examples[pairs[0][0]]
    return Interval(
        arm=arm, seeds=len(pairs), examples=count, difference=statistics.fmean(difference), low=low, high=high
    )


def _counts(examples: int) -> Iterator[Counts]:
    """How often each draw takes each example, (draws, examples), some draws at a time."""
    # RandomState: of NumPy's generators, the one whose numbers never change from version to version
    generator = np.random.RandomState(SEED)
    rows = max(1, ENTRIES // max(1, examples))
    for start in range(0, DRAWS, rows):
        count = min(rows, DRAWS - start)
        taken = generator.randint(0, examples, size=(count, examples), dtype=np.int64)
        places = taken + np.arange(count, dtype=np.int64)[:, None] * examples
        yield np.bincount(places.ravel(), minlength=count * examples).reshape(count, examples).astype(np.int16)


def _bounds(values: Numbers) -> tuple[float | None, float | None]:
    finite = values[np.isfinite(values)]
    if len(finite) * 2 < len(values):
        return None, None
    low, high = np.quantile(finite, LEVELS)
    return round(float(low), DIGITS), round(float(high), DIGITS)


def _score(record: RunRecord, split: str, metric: str) -> float:
    return record.metrics[split][metric]


def _stamp(given: Predictions) -> bytes:
    """Which examples these are the answers to."""
    digest = hashlib.sha256(repr(list(given.ids)).encode())
    digest.update(given.target.contiguous().numpy().tobytes())
    return digest.digest()
