"""How good the answers of a run are: its scores, computed again beside those of its record or on other data, which
classes it takes for which, and which of its stored answers are worth looking at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.tables import text_table
from meq.analysis.walk import of_token
from meq.data.contract import DataSet, Example, tensors_of
from meq.encoders.contract import Progress
from meq.errors import shown
from meq.models.base import FusionModel, Output
from meq.models.heads import probabilities
from meq.models.iterated import IteratedModel
from meq.runs.load import TrainedRun
from meq.runs.own_data import ReadOptions, RunData, chosen_split, run_data
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

    @property
    def as_recorded(self) -> bool | None:
        """Whether the scores are those of the record; None where it has none."""
        if self.recorded is None:
            return None
        return all(same_score(self.metrics.get(name, math.nan), value) for name, value in self.recorded.items())


@dataclass(frozen=True, kw_only=True)
class Evaluation:
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

    def __str__(self) -> str:
        names = list(self.splits[0].metrics) if self.splits else []
        rows = [
            [each.split, f"{each.examples:,}", *(f"{each.metrics[name]:.4f}" for name in names)] for each in self.splits
        ]
        parts = [text_table(["split", "examples", *names], rows), self.selection, self.origin]
        if self.depth is not None:
            means = [f"{each.split} {each.mean_steps:.2f}" for each in self.splits if each.mean_steps is not None]
            parts.append(f"{self.depth}; mean steps: {', '.join(means)}")
        for each in self.splits:
            if each.confusion is not None and len(self.labels) <= CLASSES_SHOWN:
                parts += ["", confusion_text(each.split, self.labels, each.confusion)]
        return "\n".join(parts)


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
) -> Evaluation:
    """Scores on every labelled split of the run's own data, or on a table with the same columns; or on one split.

    A label that training never saw is an error that names its row, or, where bad rows are skipped, is left out.
    All are read at step `steps`; unless given, by the run's calibrated rule, or else at the model's own depth.
    """
    model = run.model_read(steps)
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
        splits=tuple(_scored(run, model, ready, made, name, reading.progress) for name in names),
        left_out=len(ready.left_out),
        depth=_depth_in_words(run, model),
    )


def _depth_in_words(run: TrainedRun, model: FusionModel) -> str | None:
    if not isinstance(model, IteratedModel) or not isinstance(run.model, IteratedModel):
        return None
    if model.anytime is not None:
        return f"read by the calibrated rule, {model.anytime}"
    return None if model.steps == run.model.steps else f"read at step {model.steps}, not at K = {run.model.steps}"


def _scored(
    run: TrainedRun, model: FusionModel, ready: RunData, data: DataSet, split: str, progress: Progress | None
) -> SplitScores:
    taken: list[Tensor] = []

    def look(output: Output) -> None:
        if output.solution is not None:
            taken.append(output.solution.steps.double().cpu())

    predictions = predict_split(model, data, split, batch_size=run.batch_size, progress=progress, look=look)
    comparable = ready.same and _depth_in_words(run, model) is None
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
