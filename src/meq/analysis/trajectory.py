"""What a model answers, and how far from rest it is, at every step: over a whole data set, one batch at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.subject import Case, Subject, check_iterates, held_still, open_case, stopped_at
from meq.analysis.tables import middle, number, text_table
from meq.core.options import checked_options
from meq.core.solution import Solution, relative
from meq.core.state import State, large_norm

STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200)
"""Where to look unless told: densely at the first exchanges, which carry most."""

Score = Callable[[Tensor, Tensor], float]
"""(logits N C, targets N ...) -> number: a `Metric` of `meq.data`, or any function."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What was read at each measured step. S steps, N samples, R states: N, or one per choice in multiple choice."""

    steps: tuple[int, ...]
    read: int
    """K, the step the model's answer is read at."""
    predictions: Int[Tensor, "S N"]
    """The largest logit's place (one number: is it positive?); -1 where the logits are not finite."""
    confidence: Float[Tensor, "S N"]
    """The probability given to the prediction, NaN for a regression and where the logits are not finite."""
    residuals: dict[str, Float[Tensor, "S R"]]
    """|z(k) - T(z(k))| / |z(k)| of the undamped map, per modality; NaN where it is absent or the state diverged."""
    drift: dict[str, Float[Tensor, " R"]]
    """|z(horizon) - z(K)| / |z(K)|, per modality; NaN where it is absent or the state diverged."""
    stopped: Int[Tensor, " R"]
    """The last step at which a diverged state was finite, which is the one that is read from then on; -1: none did."""
    correct: Bool[Tensor, "S N"] | None
    """Is the prediction the target? None without targets that are classes."""
    metric: Float[Tensor, " S"] | None
    """The score over the samples whose logits are finite."""
    metric_name: str

    @property
    def horizon(self) -> int:
        return self.steps[-1]

    @property
    def diverged(self) -> int:
        """How many states stopped being finite."""
        return int((self.stopped >= 0).sum())

    @cached_property
    def flips(self) -> Int[Tensor, " S"]:
        """How many samples have, at some later measured step, another prediction than at this one."""
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
        drifts = ", ".join(f"{name} {number(middle(values))}" for name, values in self.drift.items())
        return "\n".join(
            [
                self._heading(),
                text_table(header, [self._row(row) for row in range(len(self.steps))]),
                f"drift |z({self.horizon}) - z({self.read})| / |z({self.read})|: {drifts}",
                "* is read. Confidence, residuals (of the undamped map) and drift are medians. flips: samples that",
                "answer otherwise at a later step. lost: their logits are not finite, and the score leaves them out.",
            ]
        )

    def _heading(self) -> str:
        samples, states = self.predictions.shape[1], len(self.stopped)
        kinds = f"{samples} samples" if samples == states else f"{samples} samples, {states} states"
        return f"{kinds}, {self.diverged or 'none'} diverged"

    def _row(self, row: int) -> list[str]:
        step = f"{self.steps[row]}{'*' if self.steps[row] == self.read else ''}"
        score = [] if self.metric is None else [number(self.metric[row].item())]
        counts = [str(self.flips[row].item()), str(int((self.predictions[row] < 0).sum()))]
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
    are held. `metric` needs all logits of every measured step, so ask for few steps where there are thousands of
    classes; without it the score is the accuracy, if the targets are classes.
    """
    check_iterates(model)
    chosen = _choose_steps(steps, model.steps, horizon)
    ledger = _Ledger(model.head_kind, chosen, keeps_logits=metric is not None)
    with torch.no_grad(), held_still(model):
        for batch in batches:
            case = open_case(model, batch.features, batch.masks)
            ledger.add(_walk(case, chosen, model.steps), getattr(batch, "target", None))
    return ledger.close(model.steps, metric)


def _choose_steps(steps: Sequence[int] | None, read: int, horizon: int) -> tuple[int, ...]:
    if horizon < read:
        raise ValueError(f"horizon={horizon} lies before the step that is read, K = {read}")
    if steps is None:
        steps = [k for k in STEPS if k <= horizon]
    outside = sorted(k for k in steps if not 0 <= k <= horizon)
    if outside:
        raise ValueError(f"steps {outside} lie outside 0 to {horizon}: raise the horizon, or leave them out")
    return tuple(sorted({*steps, read, horizon}))


@dataclass(frozen=True, eq=False)
class _Walk:
    """One batch's numbers."""

    logits: list[Tensor]
    residuals: dict[str, Float[Tensor, "S R"]]
    drift: dict[str, Float[Tensor, " R"]]
    stopped: Int[Tensor, " R"]


def _walk(case: Case, steps: tuple[int, ...], read: int) -> _Walk:
    logits: dict[int, Tensor] = {}
    at_read: list[State] = []

    def look(k: int, state: State) -> None:
        if k in steps:
            logits[k] = case.read(state).cpu()
        if k == read:
            at_read.append(state)

    solution = case.walk(steps[-1], trajectory=look)
    last = case.read(solution.state).cpu()  # where the walk broke off because every sample had diverged
    stopped = stopped_at(solution)
    finite = stopped < 0
    start = at_read[0] if at_read else solution.state
    drift = {
        name: _drift(z, start[name], solution.masks.get(name)).where(finite, torch.nan)
        for name, z in solution.state.items()
    }
    return _Walk(
        [logits.get(k, last) for k in steps],
        {name: rows.cpu() for name, rows in _residuals(solution, steps, finite).items()},
        {name: values.cpu() for name, values in drift.items()},
        stopped.cpu(),
    )


def _drift(end: Tensor, start: Tensor, mask: Tensor | None) -> Float[Tensor, " R"]:
    return relative(large_norm(end - start, mask), large_norm(start, mask), mask)


def _residuals(solution: Solution, steps: tuple[int, ...], finite: Bool[Tensor, " R"]) -> dict[str, Tensor]:
    """The loop measured every state but the last, which takes one more operator call."""
    return {
        name: torch.stack([*(rows[k] for k in steps[:-1]), solution.final_residual[name].where(finite, torch.nan)])
        for name, rows in solution.residuals.items()
    }


@dataclass(eq=False)
class _Ledger:
    """Numbers per sample, batch after batch."""

    head: str
    steps: tuple[int, ...]
    keeps_logits: bool
    predictions: list[Tensor] = field(default_factory=list)
    confidence: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    walks: list[_Walk] = field(default_factory=list)

    def add(self, walk: _Walk, target: Tensor | None) -> None:
        answers = [answer(logits, self.head) for logits in walk.logits]
        if self.keeps_logits:
            self._keep(torch.stack(walk.logits))
        walk.logits.clear()
        self.predictions.append(torch.stack([prediction for prediction, _ in answers]))
        self.confidence.append(torch.stack([confidence for _, confidence in answers]))
        self.walks.append(walk)
        if target is not None:
            self.targets.append(target.cpu())
        if self.targets and len(self.targets) != len(self.walks):
            raise ValueError("some batches have targets and some have none: give targets for all of them or for none")

    def _keep(self, logits: Float[Tensor, "S B C"]) -> None:
        if self.logits and logits.shape[2] != self.logits[0].shape[2]:
            sizes = f"{self.logits[0].shape[2]} and {logits.shape[2]}"
            raise ValueError(
                f"batches with {sizes} logits per sample cannot be scored together: bring them to one size"
            )
        self.logits.append(logits)

    def close(self, read: int, metric: Score | None) -> Trajectory:
        if not self.walks:
            raise ValueError("there were no batches: a generator that was used up, or an empty split?")
        predictions = torch.cat(self.predictions, 1)
        target = torch.cat(self.targets) if self.targets else None
        correct = self._correct(predictions, target)
        return Trajectory(
            self.steps,
            read,
            predictions,
            torch.cat(self.confidence, 1),
            {name: torch.cat([walk.residuals[name] for walk in self.walks], 1) for name in self.walks[0].residuals},
            {name: torch.cat([walk.drift[name] for walk in self.walks]) for name in self.walks[0].drift},
            torch.cat([walk.stopped for walk in self.walks]),
            correct,
            self._scores(predictions, correct, target, metric),
            "accuracy" if metric is None else str(getattr(metric, "name", getattr(metric, "__name__", "metric"))),
        )

    def _correct(self, predictions: Int[Tensor, "S N"], target: Tensor | None) -> Bool[Tensor, "S N"] | None:
        if target is None or target.ndim != 1 or target.is_floating_point() or self.head == "score":
            return None
        return predictions == target

    def _scores(
        self, predictions: Tensor, correct: Tensor | None, target: Tensor | None, metric: Score | None
    ) -> Float[Tensor, " S"] | None:
        finite = predictions >= 0
        if metric is None:
            return None if correct is None else correct.double().sum(1) / finite.sum(1)
        if target is None:
            raise ValueError("a metric was given, but the batches have no targets to score against")
        logits = torch.cat(self.logits, 1)
        pairs = zip(logits, finite, strict=True)
        scores = [metric(rows[kept], target[kept]) if bool(kept.any()) else math.nan for rows, kept in pairs]
        return torch.tensor(scores, dtype=torch.float64)


def answer(logits: Float[Tensor, "B C"], head: str) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """The prediction and the probability the head gives it; see `Trajectory` for regressions and lost logits."""
    lost = ~torch.isfinite(logits).all(1)
    if head == "score":
        return (logits[:, 0] > 0).long().where(~lost, -1), torch.full_like(logits[:, 0], torch.nan)
    prediction = logits.argmax(1)  # not of the probabilities: rounding makes the largest ones equal
    chances = logits.sigmoid() if head == "labels" else logits.softmax(1)
    confidence = chances.gather(1, prediction[:, None])[:, 0]
    return prediction.where(~lost, -1), confidence.where(~lost, torch.nan)
