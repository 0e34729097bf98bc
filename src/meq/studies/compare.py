"""Arms compared over seeds: mean, spread, paired difference, called or not; and over examples, by a paired bootstrap.

All of it is a pure function of records and stored answers.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from meq.data.metrics import metric_named
from meq.data.resampling import ENTRIES, Counts, Numbers, scores_of_draws
from meq.studies.study import Run, Study, run_place
from meq.training.predictions import Predictions, read_predictions
from meq.training.record import FINISHED, RunRecord

CALLED, NOT_CALLED, INCOMPLETE, REFERENCE = "called", "not called", "incomplete", "reference"
TOO_FEW, ONE_SEED, NOT_A_NUMBER = "too few seeds", "one seed", "not a number"
FEWEST = 3
"""Seeds: the spread of two differences says next to nothing, and two that happen to be close would always be called."""

Records = Mapping[Run, RunRecord]
"""By arm and seed; runs that are not over are left out."""


@dataclass(frozen=True, kw_only=True)
class ArmLine:
    """What the seeds of one arm say, about one metric on one split."""

    arm: str
    parameters: int | None
    """None as long as there is no record."""
    runs: str
    """How many of the planned runs have a score, and what became of the others: "2 of 3 (seed 2 failed)"."""
    mean: float | None
    spread: float | None
    """The sample standard deviation over seeds; None for fewer than two."""
    difference: float | None
    """Mean over seeds of this arm minus the reference, paired by seed."""
    difference_spread: float | None
    """The sample standard deviation of those paired differences."""
    verdict: str


def compare(study: Study, records: Records, *, split: str, metric: str) -> list[ArmLine]:
    """One line per arm, in the study's order."""
    scores = {arm.name: _scores(records, arm.name, study.seeds, split, metric) for arm in study.arms}
    return [_line(study, records, arm.name, scores) for arm in study.arms]


def compare_groups(study: Study, records: Records, *, split: str, metric: str) -> list[ArmLine]:
    """The best arm of each group, by its mean on dev of what weights are selected by, as a line of its own."""
    scores = {arm.name: _scores(records, arm.name, study.seeds, split, metric) for arm in study.arms}
    lines = []
    for group, members in study.groups.items():
        on_dev = {arm: mean(_scores(records, arm, study.seeds, "dev").values()) for arm in members}
        best = max(members, key=lambda arm: -math.inf if (x := on_dev[arm]) is None or math.isnan(x) else x)
        if on_dev[best] is not None:
            lines.append(replace(_line(study, records, best, scores), arm=f"{group} ({best})"))
    return lines


def verdict(differences: Sequence[float]) -> str:
    """Called when |mean| > 2 sample standard deviations of the paired differences; of two seeds nothing follows."""
    if not all(math.isfinite(value) for value in differences):
        return NOT_A_NUMBER
    if len(differences) < _fewest.get():
        return TOO_FEW if _fewest.get() == FEWEST else ONE_SEED
    return CALLED if abs(statistics.fmean(differences)) > 2 * statistics.stdev(differences) else NOT_CALLED


@contextmanager
def called_with(seeds: int) -> Iterator[None]:
    """Let so many seeds be enough for a verdict inside the block, as two were for tables of the older form."""
    token = _fewest.set(seeds)
    try:
        yield
    finally:
        _fewest.reset(token)


_fewest: ContextVar[int] = ContextVar("fewest seeds", default=FEWEST)


def scored_pairs(records: Iterable[RunRecord]) -> list[tuple[str, str]]:
    """All splits and metrics that there are scores of, the loss apart."""
    return sorted(
        {
            (split, name)
            for record in records
            for split, found in record.metrics.items()
            for name in found
            if name != "loss"
        }
    )


def _scores(
    records: Records, arm: str, seeds: Sequence[int], split: str, metric: str | None = None
) -> dict[int, float]:
    """By seed; what weights are selected by unless a metric is given."""
    found = {}
    for seed in seeds:
        record = records.get((arm, seed))
        if record is not None and record.scored:
            name = record.metric if metric is None else metric
            if name in record.metrics.get(split, {}):
                found[seed] = record.metrics[split][name]
    return found


def paired_difference(
    seeds: Sequence[int], mine: Mapping[int, float], theirs: Mapping[int, float]
) -> tuple[float | None, float | None, str]:
    """Mean and spread of mine - theirs over the seeds that have both, and the verdict, for which all are needed."""
    pairs = [mine[seed] - theirs[seed] for seed in seeds if seed in mine and seed in theirs]
    return mean(pairs), spread(pairs), verdict(pairs) if len(pairs) == len(seeds) else INCOMPLETE


def _line(study: Study, records: Records, arm: str, scores: Mapping[str, Mapping[int, float]]) -> ArmLine:
    mine = scores[arm]
    difference, its_spread, called = paired_difference(study.seeds, mine, scores[study.reference])
    is_reference = arm == study.reference
    known = {seed: records.get((arm, seed)) for seed in study.seeds}
    counts = {record.parameters for record in known.values() if record is not None}
    # never a mean over fewer runs than planned without saying so
    statuses = {seed: "missing" if record is None else record.status for seed, record in known.items()}
    odd = [f"seed {seed} {status}" for seed, status in statuses.items() if status != FINISHED]
    return ArmLine(
        arm=arm,
        parameters=counts.pop() if len(counts) == 1 else None,
        runs=f"{len(mine)} of {len(study.seeds)}" + (f" ({', '.join(odd)})" if odd else ""),
        mean=mean(mine.values()),
        spread=spread(mine.values()),
        difference=None if is_reference else difference,
        difference_spread=None if is_reference else its_spread,
        verdict=REFERENCE if is_reference else called,
    )


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return statistics.fmean(values) if values else None


def spread(values: Iterable[float]) -> float | None:
    """The sample standard deviation; None for fewer than two numbers, NaN if one of them is not finite."""
    values = list(values)
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


# -- over examples -----------------------------------------------------------------------------------------------------


# A paired bootstrap: how far does the difference of two arms depend on which examples there are? Examples are drawn
# with replacement; a drawn example brings the answers of both arms and of all seeds with it. For every draw the metric
# is computed anew for each run, then the difference arm minus reference for each seed, then the mean over seeds. The
# interval is the middle 95 % of these. Draws depend on the number of examples only, so that all arms see the same ones,
# and tables made again are the same bytes: bounds are rounded to digits that no processor's sums reach.

DRAWS, SEED = 2000, 0
LEVELS = (0.025, 0.975)
DIGITS = 6
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
    drawn: dict[Run, dict[str, Numbers]] = {}
    examples: dict[Run, tuple[int, bytes]] = {}
    counts: list[Counts] = []
    size = 0
    for run, record in records.items():
        given = answers(*run, split) if record.scored and split in record.metrics else None
        if given is None:
            continue
        if size != len(given.ids):
            size, counts = len(given.ids), list(_counts(len(given.ids)))
        examples[run] = (size, examples_digest(given))
        drawn[run] = {
            metric: np.concatenate([resampled(record, metric, given, part) for part in counts]) for metric in metrics
        }
    found: dict[str, list[Interval]] = {metric: [] for metric in metrics}
    for arm in (each.name for each in study.arms if each.name != study.reference):
        pairs = [((arm, seed), (study.reference, seed)) for seed in study.seeds]
        pairs = [(mine, theirs) for mine, theirs in pairs if mine in drawn and theirs in drawn]
        same = all(examples[mine] == examples[theirs] for mine, theirs in pairs)
        for metric in metrics if pairs else ():
            moved = [drawn[mine][metric] - drawn[theirs][metric] for mine, theirs in pairs] if same else []
            low, high = bounds(np.mean(moved, axis=0)) if moved else (None, None)
            recorded = [(records[mine].metrics[split], records[theirs].metrics[split]) for mine, theirs in pairs]
            difference = statistics.fmean(mine[metric] - theirs[metric] for mine, theirs in recorded)
            count, _ = examples[pairs[0][0]]
            found[metric].append(
                Interval(arm=arm, seeds=len(pairs), examples=count, difference=difference, low=low, high=high)
            )
    return found


def drawn_scores(record: RunRecord, metric: str, given: Predictions) -> Numbers:
    """A metric for every draw of the examples; answers to the same examples see the same draws."""
    return np.concatenate([resampled(record, metric, given, part) for part in _counts(len(given.ids))])


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


def bounds(values: Numbers) -> tuple[float | None, float | None]:
    """The middle 95 % of a number over draws; None where it is no number for most of them."""
    finite = values[np.isfinite(values)]
    if len(finite) * 2 < len(values):
        return None, None
    low, high = np.quantile(finite, LEVELS)
    return round(float(low), DIGITS), round(float(high), DIGITS)


def examples_digest(given: Predictions) -> bytes:
    """A hash of the examples that these are the answers to, and of their targets."""
    digest = hashlib.sha256(repr(list(given.ids)).encode())
    digest.update(given.target.contiguous().numpy().tobytes())
    return digest.digest()


def resampled(record: RunRecord, metric: str, given: Predictions, counts: Counts) -> Numbers:
    """A record's metric for every row of counts, which says how often each example is taken."""
    return scores_of_draws(metric_named(metric, record.data.facts), given.logits, given.target, counts)
