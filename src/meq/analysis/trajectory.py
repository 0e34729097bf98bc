"""What a model answers, and how far from rest it is, at every step: over a whole data set, one batch at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.tables import join_samples, middle, number, text_table
from meq.analysis.walk import Readings, Subject, answer, check_iterates, open_case
from meq.core.operator import held_still
from meq.options import checked_options

STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200)
"""Where to look unless told: densely at the first exchanges, which carry most."""

Score = Callable[[Tensor, Tensor], float]
"""(logits N C, targets N ...) -> number: a `Metric` of `meq.data`, or any function."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What was read at each measured step. S steps, N samples, R states: N, or one per choice in multiple choice.

    With head="tokens" every sample has T answers: those of the longest, and `answered` says which are real.
    """

    steps: tuple[int, ...]
    read: int
    """K, the step the model's answer is read at."""
    predictions: Int[Tensor, "S N *T"]
    """The largest logit's place (one number: is it positive?); -1 where the logits are not finite."""
    confidence: Float[Tensor, "S N *T"]
    """The probability given to the prediction, NaN for a regression and where the logits are not finite."""
    residuals: dict[str, Float[Tensor, "S R"]]
    """|z(k) - T(z(k))| / |z(k)| of the undamped map, per modality; NaN where it is absent or the state diverged."""
    drift: dict[str, Float[Tensor, " R"]]
    """|z(horizon) - z(K)| / |z(K)|, per modality; NaN where it is absent or the state diverged."""
    stopped: Int[Tensor, " R"]
    """The last step at which a diverged state was finite, which is the one that is read from then on; -1: none did."""
    correct: Bool[Tensor, "S N *T"] | None
    """Is the prediction the target? None without targets that are classes; False for a token that is not asked."""
    metric: Float[Tensor, " S"] | None
    """The score over the samples whose logits are finite."""
    metric_name: str
    answered: Bool[Tensor, "N T"] | None = None
    """With head="tokens": which answers belong to real tokens; the others are -1 in `predictions`."""

    @property
    def horizon(self) -> int:
        return self.steps[-1]

    @property
    def diverged(self) -> int:
        """How many states stopped being finite."""
        return int((self.stopped >= 0).sum())

    @cached_property
    def flips(self) -> Int[Tensor, " S"]:
        """How many samples, or tokens, have at some later measured step another prediction than at this one."""
        later = [(self.predictions[k + 1 :] != row).any(0).sum() for k, row in enumerate(self.predictions)]
        return torch.stack(later)

    def at(self, step: int) -> int:
        """The row of a measured step."""
        if step not in self.steps:
            raise ValueError(f"step {step} was not measured; measured: {', '.join(map(str, self.steps))}")
        return self.steps.index(step)

    def __str__(self) -> str:
        score = [] if self.metric is None else [self.metric_name]
        header = ["k", *score, "confidence", "flips", "lost", *(f"{name} residual" for name in self.residuals)]
        samples, states = self.predictions.shape[1], len(self.stopped)
        kinds = f"{samples} samples" if samples == states else f"{samples} samples, {states} states"
        whose = "samples"
        if self.answered is not None:
            kinds, whose = f"{kinds}, {int(self.answered.sum())} tokens", "tokens"
        drifts = ", ".join(f"{name} {number(middle(values))}" for name, values in self.drift.items())
        return "\n".join(
            [
                f"{kinds}, {self.diverged or 'none'} diverged",
                text_table(header, [self._row(row) for row in range(len(self.steps))]),
                f"drift |z({self.horizon}) - z({self.read})| / |z({self.read})|: {drifts}",
                f"* is read. Confidence, residuals (of the undamped map) and drift are medians. flips: {whose} that",
                "answer otherwise at a later step. lost: their logits are not finite, and the score leaves them out.",
            ]
        )

    def _row(self, row: int) -> list[str]:
        step = f"{self.steps[row]}{'*' if self.steps[row] == self.read else ''}"
        score = [] if self.metric is None else [number(self.metric[row].item())]
        lost = self.predictions[row] < 0
        lost = lost if self.answered is None else lost & self.answered
        counts = [str(self.flips[row].item()), str(int(lost.sum()))]
        residuals = [number(middle(rows[row])) for rows in self.residuals.values()]
        return [step, *score, number(middle(self.confidence[row])), *counts, *residuals]


@checked_options
def follow(
    model: Subject,
    batches: Iterable[Any],
    *,
    steps: Sequence[int] | None = None,
    horizon: int = 300,
    metric: Score | None = None,
) -> Trajectory:
    """Predictions, confidence, residuals, drift and score along k, for any number of batches, without gradients.

    `batches` have `features`, `masks` and `target` (None where there is none), on the model's device. `steps` are
    those of STEPS unless given; K and the horizon are always measured. Every sample takes every step, whatever the
    model's tolerance; a tree's root is walked, with its branches read at their K. Of the states only those of one batch
    are held, and of a `metric` that is a mean over samples (`by_sample`) only its sums; any other needs all logits of
    every measured step. Without one the score is the accuracy, if the targets are classes.
    """
    check_iterates(model)
    chosen = _choose_steps(steps, model.steps, horizon)
    streamed = metric if getattr(metric, "by_sample", False) and model.head_kind != "tokens" else None
    sums = torch.zeros(2, len(chosen), dtype=torch.float64)
    """Of the metric over the samples of each step, and how many they are."""
    found: list[tuple[Readings, Tensor, Tensor]] = []
    targets: list[Tensor] = []
    with torch.no_grad(), held_still(model):
        for batch in batches:
            readings = open_case(model, batch.features, batch.masks).read_along(chosen)
            predicted = _answers(readings, model.head_kind)
            target = getattr(batch, "target", None)
            target = None if target is None else target.cpu()
            if streamed is not None and (target is not None or not targets):  # a mixture is refused below
                sums += _sums(readings.logits, predicted[0] >= 0, target, streamed)
            if metric is None or streamed is not None:  # nobody will ask for the logits
                readings = replace(readings, logits=readings.logits[:, :0].clone())
            found.append((readings, *predicted))
            if target is not None:  # of targets that are no classes nothing is kept but how many there were
                soft = streamed is not None and target.ndim > 1
                targets.append(torch.full((len(target),), math.nan) if soft else target)
    if not found:
        raise ValueError("there were no batches: a generator that was used up, or an empty split?")
    if targets and len(targets) != len(found):
        raise ValueError("some batches have targets and some have none: give targets for all of them or for none")
    every = [readings for readings, *_ in found]
    tokens = model.head_kind == "tokens"
    predictions = _joined([each for _, each, _ in found], 1, -1)
    answered = _joined([_real(each, predicted) for each, predicted, _ in found], 0, 0) if tokens else None
    target, correct, asked = None, None, predictions >= 0
    if targets:
        target = _joined(targets, 0, -1) if tokens else torch.cat(targets)
    if target is not None and tokens:
        correct, asked = predictions == target.where(target >= 0, -2), asked & (target >= 0)
    elif target is not None and target.ndim == 1 and not target.is_floating_point() and model.head_kind != "score":
        correct = predictions == target
    if streamed is not None:
        scores: Tensor | None = sums[0] / sums[1]  # NaN where no sample is left
    elif metric is not None:
        finite = predictions >= 0 if answered is None else ((predictions >= 0) | ~answered).all(2)
        parts = [each.logits for each in every]
        scores = _scores(_filled(parts, 2, 0) if tokens else parts, finite, target, metric)
    else:
        scores = None if correct is None else correct.double().flatten(1).sum(1) / asked.flatten(1).sum(1)
    return Trajectory(
        steps=chosen,
        read=model.steps,
        predictions=predictions,
        confidence=_joined([each for _, _, each in found], 1, math.nan),
        residuals={name: torch.cat([each.residuals[name] for each in every], 1) for name in every[0].residuals},
        drift=join_samples([each.drift for each in every]),
        stopped=torch.cat([each.stopped for each in every]),
        correct=correct,
        metric=scores,
        metric_name="accuracy"
        if metric is None
        else str(getattr(metric, "name", getattr(metric, "__name__", "metric"))),
        answered=answered,
    )


def _answers(readings: Readings, head: str) -> tuple[Int[Tensor, "S B *N"], Float[Tensor, "S B *N"]]:
    """Predictions and their confidence; of tokens that are not real there are none."""
    prediction, confidence = answer(readings.logits, head)
    if readings.answered is None:
        return prediction, confidence
    return prediction.where(readings.answered, -1), confidence.where(readings.answered, math.nan)


def _real(readings: Readings, predictions: Int[Tensor, "S B N"]) -> Bool[Tensor, "B N"]:
    return torch.ones_like(predictions[0], dtype=torch.bool) if readings.answered is None else readings.answered


def _joined(parts: Sequence[Tensor], axis: int, filling: float) -> Tensor:
    """Batches one after the other along `axis`; of tokens, on the axis after it, each gets as many as the longest."""
    return torch.cat(_filled(parts, axis + 1, filling) if parts[0].ndim > axis + 1 else list(parts), axis)


def _filled(parts: Sequence[Tensor], axis: int, filling: float) -> list[Tensor]:
    longest = max(part.shape[axis] for part in parts)
    missing = [(*part.shape[:axis], longest - part.shape[axis], *part.shape[axis + 1 :]) for part in parts]
    return [torch.cat([x, x.new_full(shape, filling)], axis) for x, shape in zip(parts, missing, strict=True)]


def _choose_steps(steps: Sequence[int] | None, read: int, horizon: int) -> tuple[int, ...]:
    if horizon < read:
        raise ValueError(f"horizon={horizon} lies before the step that is read, K = {read}")
    if steps is None:
        steps = [k for k in STEPS if k <= horizon]
    outside = sorted(k for k in steps if not 0 <= k <= horizon)
    if outside:
        raise ValueError(f"steps {outside} lie outside 0 to {horizon}: raise the horizon, or leave them out")
    return tuple(sorted({*steps, read, horizon}))


def _sums(
    logits: Float[Tensor, "S B C"], finite: Bool[Tensor, "S B"], target: Tensor | None, metric: Score
) -> Float[Tensor, "2 S"]:
    """The metric's sum over a batch's samples whose logits are finite, and their number, at every step."""
    if target is None:
        raise ValueError(NO_TARGETS)
    counts = finite.sum(1).double()
    pairs = zip(logits, finite, strict=True)
    means = [metric(rows[kept], target[kept]) if bool(kept.any()) else 0.0 for rows, kept in pairs]
    return torch.stack([counts * torch.tensor(means, dtype=torch.float64), counts])


NO_TARGETS = "a metric was given, but the batches have no targets to score against"


def _scores(
    parts: list[Tensor], finite: Bool[Tensor, "S N"], target: Tensor | None, metric: Score
) -> Float[Tensor, " S"]:
    """The metric at every step, over the samples whose logits are finite."""
    if target is None:
        raise ValueError(NO_TARGETS)
    first = parts[0].shape[-1]
    if others := [part.shape[-1] for part in parts if part.shape[-1] != first]:
        raise ValueError(
            f"batches with {first} and {others[0]} logits per sample cannot be scored together: bring them to one size"
        )
    pairs = zip(torch.cat(parts, 1), finite, strict=True)
    scores = [metric(rows[kept], target[kept]) if bool(kept.any()) else math.nan for rows, kept in pairs]
    return torch.tensor(scores, dtype=torch.float64)
