"""What a run's probabilities are worth: a temperature and conformal sets, fitted on rows that chose nothing.

`Temperature` and `Coverage` are kept in `calibration.json` beside the weights; `predict` uses them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from meq.analysis.probabilities import (
    HAVE_SETS,
    Promise,
    Reliability,
    answered_rows,
    check_level,
    classes_within,
    conformity,
    fit_temperature,
    log_loss,
    promise,
    reliability,
)
from meq.data.splitting import CALIBRATION, LEAST_ROWS, MOST_ROWS
from meq.models.iterated import IteratedModel
from meq.options import nearest
from meq.studies.study import StudyError

if TYPE_CHECKING:
    from meq.models.base import FusionModel
    from meq.runs.load import TrainedRun
    from meq.runs.own_data import ReadOptions
    from meq.runs.run_files import RunFiles
    from meq.training.predictions import Predictions

NUMBERS = "its answers are numbers, which have no probabilities: `coverage` gives them intervals"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The answers that something was fitted on."""

    data: str
    split: str
    rows: int
    read: str
    """Where the answers were read, see `how_read`: other answers are not what it was fitted on."""
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return f"{self.rows:,} rows of {self.split}, read {self.read}"


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """p = softmax(logits / T). The answers stay what they are, and their confidence becomes the share that is right."""

    value: float
    source: Source
    loss: tuple[float, float]
    """-log p of the true answers, on these rows: before, and with the temperature."""
    before: Reliability
    after: Reliability

    def __str__(self) -> str:
        said = "less" if self.value > 1 else "more"
        lines = [
            f"temperature {self.value:.3f}, fitted on {self.source.words}: probabilities become {said} sure",
            f"on these rows: log loss {self.loss[0]:.4f} before, {self.loss[1]:.4f} after; expected calibration error "
            f"{self.before.error:.4f} before, {self.after.error:.4f} after",
        ]
        return "\n".join([*lines, *self.source.notes])


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What conformal sets and intervals are made with, for any level."""

    scores: tuple[float, ...]
    """Ascending: how far the true answer was from the one that was given, see `meq.analysis.probabilities`."""
    source: Source

    def promise(self, level: float) -> Promise:
        return promise(self.scores, level)

    def __str__(self) -> str:
        made = f"sets and intervals for any coverage up to {len(self.scores) / (len(self.scores) + 1):.4f}"
        lines = [f"{made}, from {self.source.words}", f"with --coverage 0.9, {self.promise(0.9).words}"]
        return "\n".join([*lines, *self.source.notes])


def how_read(model: FusionModel) -> str:
    """In words, where the model's answers are read."""
    if not isinstance(model, IteratedModel):
        return "in a single pass"
    return f"at step {model.steps}" if model.anytime is None else f"by the rule {model.anytime}"


def fitted_temperature(found: Predictions, head: str, source: Source) -> Temperature:
    """The temperature of these answers; an error where they are numbers."""
    if head == "score":
        raise StudyError(f"there is no temperature to fit: {NUMBERS}")
    logits, target = found.logits, found.target
    value = fit_temperature(logits, target, head)
    return Temperature(
        value=value,
        source=source,
        loss=(log_loss(logits, target, head), log_loss(logits, target, head, temperature=value)),
        before=reliability(logits, target, head),
        after=reliability(logits, target, head, temperature=value),
    )


def measured_coverage(found: Predictions, head: str, source: Source) -> Coverage:
    """The distances of these answers from the true ones; an error where an answer is not one of several."""
    check_has_sets(head)
    order = sorted(range(len(found.ids)), key=lambda row: hashlib.sha256(found.ids[row].encode()).digest())
    kept = torch.tensor(order[:MOST_ROWS])  # by a hash of the id: rows in a file often have an order
    return Coverage(scores=tuple(conformity(found.logits[kept], found.target[kept], head).tolist()), source=source)


def check_has_sets(head: str) -> None:
    if head not in HAVE_SETS:
        several = "any of several labels" if head == "labels" else "one class per token"
        raise StudyError(f"sets of answers are for one class, choice or number per row, and this run answers {several}")


def calibration_answers(
    run: TrainedRun, split: str, *, reading: ReadOptions, root: Path | None = None
) -> tuple[Predictions, Source]:
    """The run's answers to a labelled split that can calibrate: those on disk where it is read as they were."""
    if split == "train":
        raise StudyError("train cannot calibrate: the weights have learned its answers, and are far too sure of them")
    model, place = run.model_read(), run.place
    stored = None
    if run.anytime is None and place is not None:
        from meq.runs.run_files import open_run_files

        stored = open_run_files(place).predictions(split)
    if stored is None:
        stored = _asked_again(run, split, model, reading, root)
    if len(stored.ids) < LEAST_ROWS:
        raise StudyError(
            f"{split} has {len(stored.ids):,} labelled rows, and calibration needs at least {LEAST_ROWS}: fewer say "
            "little about probabilities"
        )
    return stored, Source(data=run.task.data, split=split, rows=len(stored.ids), read=how_read(model))


def _asked_again(
    run: TrainedRun, split: str, model: FusionModel, reading: ReadOptions, root: Path | None
) -> Predictions:
    from meq.runs.own_data import chosen_split, run_data
    from meq.training.predictions import labelled, predict_split

    known = {} if run.record is None else run.record.data.splits
    if split == CALIBRATION and known and split not in known:
        raise StudyError(none_kept(known))
    data = run_data(run, root=root, reading=reading).data
    made = chosen_split(data, split)
    if not labelled(made.splits[split]):
        raise StudyError(f"{made.name}: {split} has no labels to calibrate with: {nearest(split, data.splits)}")
    return predict_split(model, made, split, batch_size=run.batch_size, progress=reading.progress)


def none_kept(splits: Mapping[str, int]) -> str:
    """Why there is nothing to calibrate with, and what to do about it."""
    return (
        f"this run kept no rows apart for calibration: its dev split has {splits.get('dev', 0):,}, and of at least "
        f"{2 * LEAST_ROWS} in a table half are kept. Train on more rows, or call {LEAST_ROWS} or more of them "
        f"{CALIBRATION!r} in the column of splits; or name another labelled split with `split`, whose scores are then "
        "no longer those of unseen rows"
    )


# -- what is applied to answers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What answers are given with: the temperature, the promise of their sets, and both in words."""

    temperature: float = 1.0
    promise: Promise | None = None
    intervals: bool = False
    """Answers are numbers, and their sets intervals."""
    words: tuple[str, ...] = ()


def applied(run: TrainedRun, model: FusionModel, *, raw: bool = False, coverage: float | None = None) -> Applied:
    """What the run's calibration does to answers of this model: nothing that was fitted on answers read elsewhere."""
    kept, head, read = run.calibration, run.task.head, how_read(model)
    found = None if kept is None else kept.temperature
    value, words = 1.0, []
    if head != "score" and raw:
        words.append("probabilities are raw, as was asked for")
    elif head != "score" and found is None:
        words.append("probabilities are as the model gives them, not calibrated")
    elif found is not None and found.source.read != read:
        words.append(f"probabilities are raw: the temperature was fitted on answers read {found.source.read}")
    elif found is not None:
        value = found.value
        words.append(f"probabilities by temperature {value:.3f}, fitted on {found.source.words}")
    if coverage is None:
        return Applied(temperature=value, words=tuple(words))
    made = _promised(run, read, coverage)
    if run.model.int8 is not None:
        words.append("it was calibrated with the float model, whose answers int8 changes a little")
    words.append(f"coverage: {made.words}")
    return Applied(temperature=value, promise=made, intervals=head == "score", words=tuple(words))


def _promised(run: TrainedRun, read: str, level: float) -> Promise:
    check_level(level)
    check_has_sets(run.task.head)
    kept = None if run.calibration is None else run.calibration.coverage
    if kept is None:
        raise StudyError("`coverage` needs a calibrated run, and this one is not: meq calibrate RUN --coverage")
    if kept.source.read != read:
        raise StudyError(
            f"`coverage` was calibrated on answers read {kept.source.read}, and these are read {read}: read them so, "
            "or calibrate again: meq calibrate RUN --coverage"
        )
    return kept.promise(level)


# -- what reports show, from files alone -------------------------------------------------------------------------------

SHOWN_LEVELS = (0.8, 0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class CheckedProbabilities:
    """Probabilities held against a split's stored answers, which nothing was fitted on unless `own` says so."""

    split: str
    rows: int
    own: bool
    """The temperature was fitted on this very split."""
    temperature: Temperature | None
    """None where none was fitted, or on answers that were read elsewhere."""
    loss: tuple[float, float | None]
    """-log p of the true answers: raw, and with the temperature."""
    before: Reliability
    after: Reliability | None
    covered: tuple[tuple[float, float, float], ...]
    """By level of coverage: the share of sets that held the true answer, and their mean size."""


def checked_probabilities(files: RunFiles) -> CheckedProbabilities | None:
    """The run's probabilities on the split that is reported; None for numbers, and where no answers are stored."""
    split = files.reported_split
    found = None if split is None else files.predictions(split)
    if split is None or found is None or files.task is None or files.head == "score":
        return None
    from meq.runs.calibrate import read_calibration

    kept = read_calibration(files.folder / "model", files.task.weights_sha256)
    read = "in a single pass" if files.steps is None else f"at step {files.steps}"
    fitted = None if kept is None or kept.temperature is None else kept.temperature
    fitted = fitted if fitted is not None and fitted.source.read == read else None
    made = None if kept is None or kept.coverage is None or kept.coverage.source.read != read else kept.coverage
    logits, target, head = found.logits, found.target, files.head
    after = None if fitted is None else reliability(logits, target, head, temperature=fitted.value)
    loss = None if fitted is None else log_loss(logits, target, head, temperature=fitted.value)
    return CheckedProbabilities(
        split=split,
        rows=len(found.ids),
        own=fitted is not None and fitted.source.split == split,
        temperature=fitted,
        loss=(log_loss(logits, target, head), loss),
        before=reliability(logits, target, head),
        after=after,
        covered=() if made is None else tuple(_observed(found, head, made, level) for level in SHOWN_LEVELS),
    )


def _observed(found: Predictions, head: str, made: Coverage, level: float) -> tuple[float, float, float]:
    logits, target = answered_rows(found.logits, found.target, head)
    sets = classes_within(logits, head, made.promise(level).threshold)
    held = sum(int(true) in each for true, each in zip(target, sets, strict=True))
    return level, held / max(1, len(sets)), sum(map(len, sets)) / max(1, len(sets))
