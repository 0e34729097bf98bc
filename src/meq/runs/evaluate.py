"""How good the answers of a run are: its scores, computed again beside those of its record or on other data, which
classes it takes for which, and which of its stored answers are worth looking at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.tables import text_table
from meq.analysis.walk import of_token
from meq.data.context import Context, context_of
from meq.data.contract import DataSet, Example, tensors_of
from meq.data.metrics import MICRO_F1, as_shown
from meq.encoders.contract import Progress
from meq.errors import shown
from meq.models.base import FusionModel, Output
from meq.models.heads import probabilities
from meq.models.iterated import IteratedModel
from meq.runs.load import TrainedRun
from meq.runs.own_data import ReadOptions, RunData, chosen_split, run_data
from meq.runs.worth import Worth, measure_worth
from meq.showing import Tabular
from meq.studies.study import StudyError
from meq.tables import Cell, Table
from meq.training.predictions import Predictions, labelled, predict_split, scores
from meq.training.record import Selection, same_score

CLASSES_SHOWN = 15
"""Larger tables of classes are not printed; they are in the JSON."""
LABEL_SHOWN = 40
"""Characters of a label in a table."""
WRONG, UNSURE, RIGHT = "most confidently wrong", "least sure", "most confidently right"
FARTHEST, NEAREST = "farthest off", "nearest"
REASONS = (WRONG, UNSURE, RIGHT, FARTHEST, NEAREST)
MOST_CLASSES = 12
"""A square table of more classes cannot be read: the most frequent mistakes are listed instead."""
MISTAKES = 12


@dataclass(frozen=True, kw_only=True)
class Int8Change:
    """What int8 changed on one split."""

    changed: float | None
    """The share of answers that are not the float model's, of tokens where those answer; None for numbers."""
    moved: float
    """How far logits moved, on average."""
    float_metrics: Mapping[str, float]
    """The float model's scores."""

    def in_words(self, split: str, metric: str, found: float) -> str:
        share = "" if self.changed is None else f"{100 * self.changed:.2f} % of the answers changed, "
        return (
            f"int8 on {split}: {share}logits moved by {self.moved:.2g} on average; {metric} {found:.4f}, "
            f"of the float model {self.float_metrics[metric]:.4f}"
        )


@dataclass(frozen=True, kw_only=True)
class SplitScores:
    """One split."""

    split: str
    examples: int
    metrics: Mapping[str, float]
    """By name, and "loss", the mean loss of the task."""
    recorded: Mapping[str, float] | None
    """What the run's record says of this split, if it is the same data."""
    confusion: tuple[tuple[int, ...], ...] | None
    """Row: the label, column: the answer, of examples or of the tokens that are asked; None where answers are not
    classes."""
    mean_steps: float | None = None
    """The steps that were taken, on average; None for a model that does not iterate."""
    int8: Int8Change | None = None
    """Where the answers are those of an int8 model: what that changed."""
    context: Context | None = None
    """What to hold the scores against: their intervals, always the same answer, chance."""

    @property
    def as_recorded(self) -> bool | None:
        """Whether the scores are those of the record; None where it has none."""
        if self.recorded is None:
            return None
        return all(same_score(self.metrics.get(name, math.nan), value) for name, value in self.recorded.items())


@dataclass(frozen=True, kw_only=True)
class Evaluation(Tabular):
    """The kept weights on labelled data."""

    data: str
    same_data: bool
    """The very data of training, by its fingerprint."""
    metric: str
    labels: tuple[str, ...]
    selected: Selection | None
    """How the weights were chosen; None for a model without its record."""
    splits: tuple[SplitScores, ...]
    left_out: int
    """Rows that could not be read, where skipping them was asked for."""
    depth: str | None = None
    """In words, where answers were read, if that is not the depth that the record's were read at."""
    worth: Worth | None = None
    """What each modality is worth on the reported split; None where it was not asked for, or has too few examples."""

    @property
    def selection(self) -> str:
        """In words, on which split the weights were chosen."""
        if self.selected is None:
            return "which split the weights were chosen on is not known: the run's record is not here"
        if self.selected.by == "last":
            return f"weights of the last epoch ({self.selected.epoch}), chosen on no split"
        split, epoch = self.selected.split, self.selected.epoch
        return f"weights of the best epoch on {split} ({epoch}): the score on {split} is the best of all epochs"

    @property
    def origin(self) -> str:
        """In words, whether this is the data of training."""
        if not self.same_data:
            return f"{self.data} is not the data that the run was trained on, or has changed since: fingerprints differ"
        if self.depth is not None:
            return "the data of training, read at another depth than the record's scores, which are not compared"
        compared = [each.as_recorded for each in self.splits if each.as_recorded is not None]
        if not all(compared):
            return "the data of training, and yet other scores than recorded: other versions, or another precision?"
        return "the data of training; the scores are those of its record" if compared else "the data of training"

    def rows(self) -> list[dict[str, Any]]:
        """One per split."""
        steps = any(each.mean_steps is not None for each in self.splits)
        return [
            {
                "split": each.split,
                "examples": each.examples,
                **each.metrics,
                **({"mean_steps": each.mean_steps} if steps else {}),
            }
            for each in self.splits
        ]

    def __str__(self) -> str:
        return "\n".join([scores_text(self.splits, self.metric), *self.remarks()])

    def remarks(self) -> list[str]:
        """What the table of scores does not show: where weights and data come from, and the confusions."""
        parts = [self.selection, self.origin]
        if self.depth is not None:
            means = [f"{each.split} {each.mean_steps:.2f}" for each in self.splits if each.mean_steps is not None]
            parts.append(f"{self.depth}; mean steps: {', '.join(means)}")
        parts += [
            each.int8.in_words(each.split, self.metric, each.metrics[self.metric])
            for each in self.splits
            if each.int8 is not None
        ]
        for each in self.splits:
            if each.confusion is not None and len(self.labels) <= CLASSES_SHOWN:
                parts += ["", confusion_text(each.split, self.labels, each.confusion)]
        return parts if self.worth is None else [*parts, "", str(self.worth)]


def scores_text(splits: Sequence[SplitScores], metric: str) -> str:
    """A line per score and a column per split, with intervals, and what the score on the first line is held against."""
    names = list(splits[0].metrics) if splits else []
    known = [each for each in splits if each.context is not None]
    rows = [["examples", *(f"{each.examples:,}" for each in splits)]]
    rows += [[as_shown(name, 0.0)[0], *(_score_text(each, name) for each in splits)] for name in names]
    if any(each.context is not None and each.context.constant is not None for each in known):
        rows.append([f"always the same: {metric}", *(_constant_text(each.context) for each in splits)])
    if any(each.context is not None and each.context.chance is not None for each in known):
        rows.append([f"chance: {metric}", *(_chance_text(each.context) for each in splits)])
    table = text_table(["score", *(each.split for each in splits)], rows)
    methods = list(dict.fromkeys(x.method for each in known if each.context for x in each.context.intervals.values()))
    return f"{table}\nin brackets: 95 % intervals over examples ({' for shares, '.join(methods)})" if methods else table


def _score_text(found: SplitScores, name: str) -> str:
    value = as_shown(name, found.metrics.get(name, math.nan))[1]
    interval = None if found.context is None else found.context.intervals.get(name)
    return f"{value:.4f}" if interval is None else f"{value:.4f} {interval.shown_for(name)}"


def _constant_text(context: Context | None) -> str:
    if context is None or context.constant is None:
        return "-"
    return f"{context.constant:.4f} ({shown(context.majority, LABEL_SHOWN)})"


def _chance_text(context: Context | None) -> str:
    return "-" if context is None or context.chance is None else f"{context.chance:.4f}"


def confusion_text(split: str, labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> str:
    """Rows are labels, columns answers; the last column is the share of a label's examples that were recognised."""
    rows, labels = [], [shown(label, LABEL_SHOWN) for label in labels]
    for place, (label, counts) in enumerate(zip(labels, confusion, strict=True)):
        recall = f"{counts[place] / sum(counts):.3f}" if sum(counts) else "-"
        rows.append([label, *(str(count) for count in counts), recall])
    return text_table([f"{split}: label / answer", *labels, "recall"], rows)


def evaluate_run(
    run: TrainedRun,
    data: str | None = None,
    *,
    root: Path | None = None,
    split: str | None = None,
    reading: ReadOptions = ReadOptions(),  # noqa: B008
    steps: int | None = None,
    int8: bool = False,
    worth: bool = True,
) -> Evaluation:
    """Scores on every labelled split of the run's own data, or on a table with the same columns; or on one split.

    A label that training never saw is an error that names its row, or, where bad rows are skipped, is left out.
    All are read at step `steps`; unless given, by the run's calibrated rule, or else at the model's own depth. With
    `int8`, answers are those of the run's int8 model, and it is said what that changes. With `worth`, each modality is
    shuffled and left out on test, or else on dev: see `measure_worth`, which says what that takes.
    """
    model, base = run.model_read(steps), None
    if int8:
        model, base = run.quantised().model_read(steps), model
    ready = run_data(run, data, root=root, reading=reading)
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
        splits=tuple(_scored(run, model, ready, made, name, reading.progress, base) for name in names),
        left_out=len(ready.left_out),
        depth=_depth_in_words(run, model),
        worth=measure_worth(model, ready.data, _reported(names), progress=reading.progress) if worth else None,
    )


def _reported(names: Sequence[str]) -> str:
    return next(name for name in ("test", "dev", *names) if name in names)


def _depth_in_words(run: TrainedRun, model: FusionModel) -> str | None:
    if not isinstance(model, IteratedModel) or not isinstance(run.model, IteratedModel):
        return None
    if model.anytime is not None:
        return f"read by the calibrated rule, {model.anytime}"
    return None if model.steps == run.model.steps else f"read at step {model.steps}, not at K = {run.model.steps}"


def _scored(
    run: TrainedRun,
    model: FusionModel,
    ready: RunData,
    data: DataSet,
    split: str,
    progress: Progress | None,
    base: FusionModel | None = None,
) -> SplitScores:
    """The model's scores; with those of `base`, its float one, where that is given."""
    taken: list[Tensor] = []

    def look(output: Output) -> None:
        if output.solution is not None:
            taken.append(output.solution.steps.double().cpu())

    predictions = predict_split(model, data, split, batch_size=run.batch_size, progress=progress, look=look)
    comparable = ready.same and base is None and _depth_in_words(run, model) is None
    recorded = run.record.metrics.get(split) if run.record is not None and comparable else None
    confusion, classes = None, len(data.labels)
    if data.head in ("classes", "ordinal", "tokens"):
        asked = predictions.target >= 0  # all but tokens without an answer
        places = predictions.target[asked].long() * classes + predictions.logits.argmax(-1)[asked]
        counts = torch.bincount(places, minlength=classes * classes).reshape(classes, classes)
        confusion = tuple(tuple(row) for row in counts.tolist())
    return SplitScores(
        split=split,
        examples=len(predictions.ids),
        metrics=scores((data.metric, *data.also), data.head, predictions),
        recorded=recorded,
        confusion=confusion,
        mean_steps=torch.cat(taken).mean().item() if taken else None,
        int8=None if base is None else _int8_change(predictions, base, data, split, run.batch_size),
        context=context_of(
            (data.metric, *data.also), predictions.logits, predictions.target, head=data.head, labels=data.labels
        ),
    )


def _int8_change(found: Predictions, base: FusionModel, data: DataSet, split: str, batch_size: int) -> Int8Change:
    kept = predict_split(base, data, split, batch_size=batch_size)
    asked = kept.target >= 0 if data.head == "tokens" else torch.ones(len(kept.logits), dtype=torch.bool)
    near, exact = found.logits[asked], kept.logits[asked]
    several = data.head == "labels" and data.metric.name == MICRO_F1.name  # others, as VQA, ask for the best of them
    differs = ((near > 0) != (exact > 0)).any(-1) if several else near.argmax(-1) != exact.argmax(-1)
    return Int8Change(
        changed=None if data.head == "score" else differs.double().mean().item(),
        moved=(near - exact).double().abs().mean().item(),
        float_metrics=scores((data.metric, *data.also), data.head, kept),
    )


# -- stored answers, one by one ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredAnswers:
    """N answers of one split."""

    head: str
    ids: Sequence[str]
    answer: Int[Tensor, " N"]
    """The class, of tokens that of the least sure one that is asked; -1 where the logits are not finite, and
    throughout for numbers."""
    truth: Int[Tensor, " N"]
    """The class, or the best of several; -1 throughout for numbers."""
    right: Bool[Tensor, " N"]
    """With soft labels: the answer is worth something. Of tokens: all that are asked are right. False throughout for
    numbers."""
    confidence: Float[Tensor, " N"]
    """The probability of the answer; NaN where there is none."""
    off: Float[Tensor, " N"]
    """How far a number is from the true one; NaN for classes."""

    @property
    def lost(self) -> int:
        """Answers that are not finite."""
        return int((self.answer < 0).sum()) if self.head != "score" else int(self.off.isnan().sum())


def score_answers(predictions: Predictions, head: str) -> ScoredAnswers:
    """What a split's stored logits say, beside its targets."""
    logits, target = predictions.logits.double(), predictions.target
    count = len(logits)
    none, nothing = torch.full((count,), -1), torch.full((count,), math.nan, dtype=torch.float64)
    wrong = torch.zeros(count, dtype=torch.bool)
    if head == "score":
        off = (logits[:, 0] - target.double().reshape(count)).abs()
        off = off.where(off.isfinite(), math.nan)
        return ScoredAnswers(
            head=head, ids=predictions.ids, answer=none, truth=none, right=wrong, confidence=nothing, off=off
        )
    whole = None
    if head == "tokens":
        logits, target, whole = _least_sure(logits, target)
    finite = logits.isfinite().all(1)
    answer = logits.argmax(1)
    chances = probabilities(logits, head)
    soft = target.ndim == 2
    right = target.gather(1, answer[:, None])[:, 0] > 0 if soft else answer == target
    return ScoredAnswers(
        head=head,
        ids=predictions.ids,
        answer=answer.where(finite, -1),
        truth=target.argmax(1) if soft else target.long(),
        right=(right if whole is None else whole) & finite,
        confidence=chances.gather(1, answer[:, None])[:, 0].where(finite, math.nan),
        off=nothing,
    )


def _least_sure(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Bool[Tensor, " N"]]:
    """Of each example the asked token that is least sure of its answer, and whether all that are asked are right."""
    asked, answer = target >= 0, logits.argmax(-1)
    sure = probabilities(logits, "tokens").amax(-1).nan_to_num(nan=0.0).masked_fill(~asked, math.inf)
    token = sure.argmin(1)
    right = ((answer == target) | ~asked).all(1)
    return of_token(logits, token), target.gather(1, token[:, None])[:, 0], right


def notable_answers(scored: ScoredAnswers, count: int = 3) -> dict[int, str]:
    """The rows of the worst and the best answers, with the reason: `count` of each kind, see `how_chosen`."""
    if scored.head == "score":
        known = [row for row in range(len(scored.ids)) if not math.isnan(float(scored.off[row]))]
        ranked = sorted(known, key=lambda row: float(scored.off[row]))
        best = ranked[:count]
        worst = [row for row in reversed(ranked) if row not in best][:count]
        return {**dict.fromkeys(worst, FARTHEST), **dict.fromkeys(best, NEAREST)}
    sure = {row: value for row, value in enumerate(scored.confidence.tolist()) if not math.isnan(value)}
    ranked = sorted(sure, key=lambda row: -sure[row])
    wrong = [row for row in ranked if not scored.right[row]][:count]
    right = [row for row in ranked if scored.right[row]]
    firsts: dict[int, int] = {}
    for row in right:  # the best of each class before others: three examples of one class would say little
        firsts.setdefault(int(scored.truth[row]), row)
    right = [*firsts.values(), *(row for row in right if row not in firsts.values())][:count]
    unsure = [row for row in reversed(ranked) if row not in {*wrong, *right}][:count]
    return {**dict.fromkeys(wrong, WRONG), **dict.fromkeys(unsure, UNSURE), **dict.fromkeys(right, RIGHT)}


def how_chosen(head: str, split: str, count: int = 3) -> str:
    """The rule of `notable_answers`, in words."""
    if head == "score":
        return (
            f"Chosen by the stored answers to {split}: the {count} numbers that are farthest from the true ones, and "
            f"the {count} that are nearest."
        )
    credit = " (an answer is wrong if it is worth nothing)" if head == "labels" else ""
    if head == "tokens":
        credit = " (of each example the least sure token counts, and one wrong token makes it wrong)"
    return (
        f"Chosen by the stored answers to {split}: the {count} wrong answers with the highest probability{credit}; the "
        f"{count} answers, of those that are left, with the lowest; and the {count} right answers with the highest "
        "probability, of each class the best one first. Nobody has picked them by hand."
    )


def asked_tokens(predictions: Predictions) -> Predictions:
    """The tokens that are asked, each as an example of its own, for what is made for classes."""
    asked = predictions.target >= 0
    ids = [id_ for id_, row in zip(predictions.ids, asked, strict=True) for _ in range(int(row.sum()))]
    return Predictions(ids=ids, logits=predictions.logits[asked], target=predictions.target[asked])


@dataclass(frozen=True, kw_only=True)
class TokenScore:
    """How many of the answers of one kind are right."""

    of: str
    answers: int
    accuracy: float
    """NaN where there are none."""


def token_scores(predictions: Predictions, data: DataSet, split: str) -> tuple[TokenScore, ...]:
    """The asked tokens of each modality, all of them, and whole examples, which one wrong token makes wrong."""
    asked = predictions.target >= 0
    right = (predictions.logits.argmax(-1) == predictions.target) & predictions.logits.isfinite().all(-1)
    owner = torch.full(asked.shape, -1)
    for row, example in enumerate(data.splits[split]):
        counts = torch.tensor([_token_count(example, name) for name in data.answering])
        owner[row, : int(counts.sum())] = torch.arange(len(counts)).repeat_interleave(counts)
    kinds = {name: (asked & (owner == place)) for place, name in enumerate(data.answering)} | {"all tokens": asked}
    found = {name: right[mask] for name, mask in kinds.items()}
    found["whole examples"] = (right | ~asked).all(1)[asked.any(1)]
    return tuple(
        TokenScore(of=name, answers=len(each), accuracy=float(each.double().mean())) for name, each in found.items()
    )


def _token_count(example: Example, name: str) -> int:
    return sum(len(x) if x.ndim > 1 else 1 for x in tensors_of(example.content.get(name)))


def confusion_table(scored: ScoredAnswers, labels: Sequence[str], *, split: str) -> Table | None:
    """True class by answer, or for many classes the most frequent mistakes; None where there are no classes.

    Of answers per token, give those of `asked_tokens`.
    """
    if scored.head not in ("classes", "ordinal"):
        return None
    pairs = Counter(zip(scored.truth.tolist(), scored.answer.tolist(), strict=True))
    if len(labels) > MOST_CLASSES:
        wrong = sorted(((n, pair) for pair, n in pairs.items() if pair[0] != pair[1]), reverse=True)[:MISTAKES]
        rows: list[dict[str, Cell]] = [
            {"true": _label(labels, true), "answer": _label(labels, answer), "count": n} for n, (true, answer) in wrong
        ]
        title = f"The most frequent mistakes on {split}, of {len(labels):,} classes"
        titles = {"true": "true class", "count": "how often"}
        return Table.of(title, rows, keys=("true", "answer", "count"), titles=titles)
    answers = [*range(len(labels)), *([-1] if scored.lost else [])]
    rows = []
    for true, label in enumerate(labels):
        counts = {f"answer {place}": pairs[true, place] for place in answers}
        total = sum(counts.values())
        rows.append({"true": label, **counts, "recall": pairs[true, true] / total if total else None})
    titles = {"true": "true class", "recall": "share found"}
    titles |= {f"answer {place}": _label(labels, place) for place in answers}
    title = f"True class (rows) and answer (columns) on {split}"
    return Table.of(title, rows, titles=titles, digits={"recall": 3})


def _label(labels: Sequence[str], place: int) -> str:
    return labels[place] if 0 <= place < len(labels) else "not finite"
