"""Thresholds of stopping rules, calibrated to a promise: what reading early may cost in accuracy.

One half of a split finds the threshold, the other one checks it. A rule is kept if in at least 95 of 100 resamples of
the second half its loss of accuracy against the full depth stays within the risk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.tables import text_table
from meq.core.iteration import StopRule
from meq.core.solution import Stop
from meq.core.state import NO_MASKS, Masks, State
from meq.data.contract import DataSet
from meq.data.metrics import MICRO_F1
from meq.encoders.contract import Progress
from meq.models.anytime import RULES, SCORES, Answering, Anytime, answers_among, largest_residual
from meq.models.base import FusionModel
from meq.models.heads import by_example
from meq.models.iterated import IteratedModel
from meq.options import checked_options, nearest, real_number, whole_number
from meq.showing import Tabular
from meq.training.predictions import BATCH_SIZE, answer_batch, batched, labelled

RESAMPLES, CHECKS = 1000, 100
QUANTILES = 64
"""How many thresholds are tried: these quantiles of what was measured."""
DEEPEST, LEAST_DEPTH = 3, 24
"""The full depth unless told: three times the read depth K, and at least this."""
SHARE = 100
"""Resamples whose counts are in memory at once."""


class CalibrationError(ValueError):
    """A model or data that cannot be calibrated; the message says why."""


@dataclass(frozen=True, kw_only=True)
class RuleTrial:
    """What became of one rule. Steps and losses are means over samples."""

    rule: str
    anytime: Anytime | None
    """The loosest setting that keeps the promise where it was calibrated; None if none does."""
    steps: float
    loss: float
    """Accuracy at full depth minus accuracy where the rule stops, on the half that calibrated."""
    within: float
    """The share of resamples of that half whose loss is within the risk."""
    checked_steps: float
    checked_loss: float
    checked_within: float
    """The same on the other half."""
    holds: bool
    """The promise is kept on both halves."""


@dataclass(frozen=True, kw_only=True)
class StopCalibration(Tabular):
    """How a model's stopping rule was chosen, and what it promises."""

    anytime: Anytime | None
    """The rule to read by; None: no rule keeps the promise, and the model is read at its own depth."""
    risk: float
    confidence: float
    read: int
    """K, the model's own depth."""
    most: int
    """The full depth that losses are measured against."""
    data: str
    split: str
    samples: int
    """Those that calibrated."""
    checked: int
    """Those that checked."""
    seed: int
    accuracy: float
    """At full depth, over both halves."""
    accuracy_read: float
    """At the model's own depth."""
    trials: tuple[RuleTrial, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        header = ["rule", "stops when", "steps", "loss", "within", "steps (check)", "loss (check)", "within (check)"]
        promised = (
            f"at most {self.risk:g} of accuracy lost against step {self.most}, in {self.confidence:.0%} of resamples"
        )
        return "\n".join(
            [
                f"{self.data}, split {self.split}: {self.samples:,} samples calibrate, {self.checked:,} check",
                f"promise: {promised}",
                text_table(header, [self._row(each) for each in self.trials]),
                f"accuracy at step {self.most}: {self.accuracy:.4f}; at the model's own step {self.read}: "
                f"{self.accuracy_read:.4f}",
                "kept: " + ("no rule" if self.anytime is None else str(self.anytime)),
                *self.notes,
            ]
        )

    def rows(self) -> list[dict[str, Any]]:
        """One per rule that was tried."""
        numbers = ("steps", "loss", "within", "checked_steps", "checked_loss", "checked_within")
        return [
            {
                "rule": each.rule,
                "kept": self.anytime is not None and each.anytime == self.anytime,
                "threshold": None if each.anytime is None else each.anytime.threshold,
                "patience": None if each.anytime is None else each.anytime.patience,
                **{name: getattr(each, name) for name in numbers},
            }
            for each in self.trials
        ]

    def remarks(self) -> list[str]:
        return ["kept: " + ("no rule" if self.anytime is None else str(self.anytime)), *self.notes]

    def _row(self, each: RuleTrial) -> list[str]:
        mark = "*" if self.anytime is not None and each.anytime == self.anytime else ""
        if each.anytime is None:
            return [each.rule, "no threshold", *["-"] * 6]
        when = f"{each.anytime.patience} agree" if each.rule == "agreement" else f"{each.anytime.threshold:.4g}"
        numbers = [(each.steps, each.loss, each.within), (each.checked_steps, each.checked_loss, each.checked_within)]
        shown = [word for s, loss, part in numbers for word in (f"{s:.2f}", f"{loss:.4f}", f"{part:.1%}")]
        return [each.rule + mark, when, *shown]


@dataclass(frozen=True, kw_only=True, eq=False)
class Walked:
    """What every rule looks at, and how good the answer is, at the steps 0 to M of N samples."""

    ids: Sequence[str]
    scores: dict[str, Float[Tensor, "M N"]]
    """By rule."""
    quality: Float[Tensor, "M N"]
    """1 for a right answer, 0 for a wrong one, or between; for a number, minus its error."""
    rested: Int[Tensor, " N"]
    """The step at which a sample settles or diverges by itself, at the latest M."""

    @property
    def most(self) -> int:
        return len(self.quality) - 1

    def rows(self, rows: Bool[Tensor, " N"]) -> Walked:
        return Walked(
            ids=[name for name, kept in zip(self.ids, rows.tolist(), strict=True) if kept],
            scores={rule: each[:, rows] for rule, each in self.scores.items()},
            quality=self.quality[:, rows],
            rested=self.rested[rows],
        )

    def stops(self, how: Anytime) -> Int[Tensor, " N"]:
        """The step at which the rule reads each sample."""
        in_a_row, found = torch.zeros_like(self.rested), torch.full_like(self.rested, self.most)
        for k, hit in enumerate(how.met(self.scores[how.rule])[: self.most]):
            in_a_row = torch.where(hit, in_a_row + 1, 0)
            now = (in_a_row >= how.hits) & (found == self.most)
            found = torch.where(now, k, found) if k >= how.least else found
        return torch.minimum(found, self.rested)

    def loss(self, stops: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """What each sample loses against the full depth."""
        return self.quality[-1] - self.quality.gather(0, stops[None])[0]


@checked_options
def calibrate_stopping(
    model: FusionModel,
    data: DataSet,
    split: str = "dev",
    *,
    rule: str | None = None,
    risk: float = 0.01,
    confidence: float = 0.95,
    most: int | None = None,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> StopCalibration:
    """Find the loosest setting of a rule, or of all of them the one with the fewest steps, that keeps a promise.

    The promise: in `confidence` of the resamples, reading early costs at most `risk` of accuracy against reading at
    step `most` (three times K, at least 24). The split must have chosen nothing about the model; where it did, as dev
    chooses the best epoch, the promise is too kind. The model is not changed: set `model.anytime` to the result's.
    """
    checked_promise(model, rule=rule, risk=risk, confidence=confidence, most=most)
    assert isinstance(model, IteratedModel)
    if split not in data.splits:
        raise CalibrationError(f"{data.name} has no split {split!r}: {nearest(split, data.splits)}")
    if not labelled(data.splits[split]):
        raise CalibrationError(f"{data.name}: {split} has no labels to calibrate with")
    depth = full_depth(model, most)
    walked = walk_split(model, data, split, depth, batch_size=batch_size, progress=progress)
    found = choose_stopping(walked, rule=rule, risk=risk, confidence=confidence, seed=seed)
    own = walked.quality.gather(0, walked.rested.clamp(max=model.steps)[None])
    found = replace(found, read=model.steps, accuracy_read=own.mean().item(), data=data.name, split=split)
    if found.accuracy_read > found.accuracy + risk:
        deep = (
            f"step {depth} itself is worse than the model's own step {model.steps}: the promise is against a depth "
            f"that costs accuracy; calibrate with most={model.steps}"
        )
        found = replace(found, notes=(*found.notes, deep))
    return found


def checked_promise(model: FusionModel, *, rule: str | None, risk: float, confidence: float, most: int | None) -> None:
    """What can be wrong with the question is said before anything that takes long."""
    if not isinstance(model, IteratedModel):
        raise CalibrationError(f"{type(model).__name__} does not iterate: there are no steps to stop at")
    if model.head is None:
        raise CalibrationError("the model was built with classes=None: it has no answers to calibrate by")
    if rule is not None and rule not in RULES:
        raise CalibrationError(f"there is no stopping rule {rule!r}: {nearest(rule, RULES)}")
    _example(rule or "residual").check_head(model.head_kind)
    real_number("risk", risk, wanted="is the accuracy that may be lost, such as 0.01", low=0.0)
    real_number("confidence", confidence, wanted="is a share of resamples, such as 0.95", low=0.5, high=1.0)
    if most is not None:
        whole_number("most", most, least=2)


def full_depth(model: IteratedModel, most: int | None = None) -> int:
    return max(DEEPEST * model.steps, LEAST_DEPTH) if most is None else most


def _example(rule: str) -> Anytime:
    return Anytime(rule) if rule == "agreement" else Anytime(rule, 0.5)


# -- one walk along the steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Walk(Anytime):
    """A rule that stops nobody, and keeps what every state answers."""

    kept: list[tuple[Tensor, Tensor | None]] = field(default_factory=list, kw_only=True)

    def reader(self, answering: Answering, head: str, choices: int = 1, *, masks: Masks = NO_MASKS) -> StopRule:
        return _Notes(lambda state: answering(state, masks), self.kept)


class _Notes:
    by_residual = False

    def __init__(
        self, answering: Callable[[State], tuple[Tensor, Tensor | None]], kept: list[tuple[Tensor, Tensor | None]]
    ) -> None:
        self.answering, self.kept = answering, kept

    def __call__(self, k: int, seen: State, active: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
        self.kept.append(self.answering(seen))
        return torch.zeros_like(active)


def walk_split(
    model: IteratedModel,
    data: DataSet,
    split: str,
    most: int,
    *,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Walked:
    """Every sample of a split along the steps 0 to `most`, once, as the model itself takes them."""
    rules = [each for each in RULES if _fits(each, model.head_kind)]
    parts: list[Walked] = []
    done, examples = 0, data.splits[split]
    for part in batched(examples, batch_size):
        parts.append(_walk_batch(model, part, data, most, rules))
        done += len(part)
        if progress is not None:
            progress(f"walking {split} to step {most}", done, len(examples))
    return Walked(
        ids=[name for part in parts for name in part.ids],
        scores={rule: torch.cat([part.scores[rule] for part in parts], 1) for rule in rules},
        quality=torch.cat([part.quality for part in parts], 1),
        rested=torch.cat([part.rested for part in parts]),
    )


def _walk_batch(model: IteratedModel, part: Any, data: DataSet, most: int, rules: Sequence[str]) -> Walked:
    walk = _Walk("residual", 0.0, most=most)
    with model.run_as(anytime=walk):
        batch, output = answer_batch(model, part, data.widths, data.answering)
    solution, head = output.solution, model.head_kind
    assert solution is not None
    assert output.logits is not None
    real = output.answered
    choices = output.logits.shape[1] if head == "choices" else 1
    logits = [answers_among(each, head, choices) for each, _ in walk.kept]
    logits += [output.logits] * (most + 1 - len(logits))  # the last one; more where all samples had settled before
    before = [None, *logits[:-1]]
    kept = {name: _held(rows, solution.steps) for name, rows in solution.residuals.items()}
    residuals = torch.stack([largest_residual(_at(kept, k), choices) for k in range(most)])
    scores = {"residual": torch.cat([residuals, torch.full_like(residuals[:1], torch.nan)])}
    for rule in rules:
        if rule != "residual":
            scores[rule] = torch.stack(
                [SCORES[rule](now, then, head, real) for now, then in zip(logits, before, strict=True)]
            )
    rested = torch.where(solution.stop_codes == Stop.BUDGET.code, most, solution.steps)
    rested = by_example(rested, choices).amax(1)  # an example goes on while one of its choices does
    quality = torch.stack([answer_quality(each, batch.target, head, data.metric.name, real) for each in logits])
    asked = ~quality.isnan().any(0)  # an example none of whose tokens is asked says nothing
    return Walked(
        ids=batch.ids, scores={rule: each.double().cpu() for rule, each in scores.items()},
        quality=quality.double().cpu(), rested=rested.cpu(),
    ).rows(asked.cpu())  # fmt: skip


def _held(residuals: Float[Tensor, "M R"], steps: Int[Tensor, " R"]) -> Float[Tensor, "M R"]:
    """Those of a row that has come to rest stay what they were there: that is what a rule sees of a choice that waits
    for the others."""
    own = torch.arange(len(residuals), device=steps.device)[:, None].minimum(steps)
    return residuals.gather(0, own)


def _at(residuals: Mapping[str, Tensor], k: int) -> State:
    return {name: rows[k] for name, rows in residuals.items()}


def _fits(rule: str, head: str) -> bool:
    try:
        _example(rule).check_head(head)
    except ValueError:
        return False
    return True


def answer_quality(
    logits: Tensor, target: Tensor, head: str, metric: str, real: Bool[Tensor, "B N"] | None = None
) -> Float[Tensor, " B"]:
    """1 for a right answer and 0 for a wrong one; of labels and tokens the share, of a number minus its error."""
    if head == "score":
        return -(logits[:, 0] - target.reshape(len(logits))).abs().double()
    if head == "labels":
        if metric == MICRO_F1.name:
            return ((logits > 0) == (target > 0.5)).double().mean(1)
        return target.gather(1, logits.argmax(1, keepdim=True))[:, 0].double()
    if head == "tokens":
        asked = (target >= 0) & (real if real is not None else True)
        right = (logits.argmax(-1) == target) & asked
        return right.sum(1).double() / asked.sum(1).double()  # NaN where nothing is asked
    return (logits.argmax(1) == target).double()


# -- the choice --------------------------------------------------------------------------------------------------------


def choose_stopping(
    walked: Walked, *, rule: str | None = None, risk: float = 0.01, confidence: float = 0.95, seed: int = 0
) -> StopCalibration:
    """The rule to keep, from what was walked; read, data and split are for the caller to fill in."""
    first = torch.tensor([in_first_half(name, seed) for name in walked.ids], dtype=torch.bool)
    calibrating, checking = walked.rows(first), walked.rows(~first)
    if len(calibrating.ids) < 2 or len(checking.ids) < 2:
        raise CalibrationError(
            f"{len(walked.ids)} samples are too few to calibrate with one half and check with another"
        )
    rules = [rule] if rule is not None else [each for each in RULES if each in walked.scores]
    trials = tuple(_tried(each, calibrating, checking, risk=risk, confidence=confidence, seed=seed) for each in rules)
    holding = [each for each in trials if each.holds]
    best = min(holding, key=lambda each: each.steps, default=None)
    return StopCalibration(
        anytime=None if best is None else best.anytime,
        risk=float(risk),
        confidence=float(confidence),
        read=walked.most,
        most=walked.most,
        data="",
        split="",
        samples=len(calibrating.ids),
        checked=len(checking.ids),
        seed=seed,
        accuracy=walked.quality[-1].mean().item(),
        accuracy_read=walked.quality[-1].mean().item(),
        trials=trials,
        notes=tuple(_notes(trials, best, risk=risk, samples=len(calibrating.ids), most=walked.most)),
    )


def in_first_half(name: str, seed: int) -> bool:
    """Whether a sample calibrates, or checks: by its id alone, so that neither order nor neighbours matter."""
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()[0] % 2 == 0


def _tried(rule: str, calibrating: Walked, checking: Walked, *, risk: float, confidence: float, seed: int) -> RuleTrial:
    """From the strictest setting to looser ones, up to the first that breaks the promise: looser ones that happen to
    keep it again would be luck."""
    settings = list(_settings(rule, calibrating))
    stops = [calibrating.stops(each) for each in settings]
    losses = torch.stack([calibrating.loss(each) for each in stops])
    shares = share_within(losses, risk, RESAMPLES, seed)
    kept = next((at for at, share in enumerate(shares) if share < confidence), len(settings)) - 1
    if kept < 0:
        nan = float("nan")
        return RuleTrial(
            rule=rule, anytime=None, steps=nan, loss=losses[0].mean().item(), within=shares[0], checked_steps=nan,
            checked_loss=nan, checked_within=nan, holds=False,
        )  # fmt: skip
    how = settings[kept]
    check = checking.stops(how)
    lost = checking.loss(check)
    (held,) = share_within(lost[None], risk, CHECKS, seed + 1)
    return RuleTrial(
        rule=rule,
        anytime=how,
        steps=stops[kept].double().mean().item(),
        loss=losses[kept].mean().item(),
        within=shares[kept],
        checked_steps=check.double().mean().item(),
        checked_loss=lost.mean().item(),
        checked_within=held,
        holds=held >= confidence,
    )


def _settings(rule: str, walked: Walked) -> Iterator[Anytime]:
    """What is tried, from strict to loose."""
    if rule == "agreement":
        yield from (Anytime(rule, patience=count, most=walked.most) for count in range(walked.most, 1, -1))
        return
    steps = torch.arange(1, walked.most)[:, None]
    seen = walked.scores[rule][1 : walked.most][steps <= walked.rested]
    seen = seen[seen.isfinite()]
    if len(seen) == 0:
        seen = torch.zeros(1, dtype=torch.float64)
    values, often = seen.unique(return_counts=True)
    between = (values[:-1] + values[1:]) / 2  # rounding may move a value, but not across the middle of two
    wanted = torch.linspace(0, 1, QUANTILES, dtype=torch.float64) * len(seen)
    places = torch.searchsorted(often.cumsum(0)[:-1].double(), wanted).clamp(max=max(0, len(between) - 1))
    loosest = values[:1] if rule == "confidence" else values[-1:]
    thresholds = torch.cat([between[places.unique()] if len(between) else between, loosest]).unique()
    for threshold in thresholds.flip(0) if rule == "confidence" else thresholds:
        yield Anytime(rule, threshold.item(), most=walked.most)


def share_within(losses: Float[Tensor, "S N"], risk: float, resamples: int, seed: int) -> list[float]:
    """Per setting: the share of resamples of the N samples whose mean loss is at most the risk."""
    generator, count = torch.Generator().manual_seed(seed), losses.shape[1]
    within = torch.zeros(len(losses))
    for start in range(0, resamples, SHARE):
        size = min(SHARE, resamples - start)
        drawn = torch.randint(count, (size, count), generator=generator)
        often = torch.zeros(size, count, dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())
        within += (losses @ often.T / count <= risk + 1e-12).sum(1)
    return (within / resamples).tolist()


def _notes(
    trials: Sequence[RuleTrial], best: RuleTrial | None, *, risk: float, samples: int, most: int
) -> Iterator[str]:
    none = [each.rule for each in trials if each.anytime is None]
    broken = [each.rule for each in trials if each.anytime is not None and not each.holds]
    if none:
        yield f"no threshold of {', '.join(none)} keeps the promise where it is calibrated"
    if broken:
        yield f"{', '.join(broken)}: the promise did not hold on the samples that check it"
    if samples * risk < 3:
        yield (
            f"{samples} samples are few for a promise of {risk:g}: a loss in up to {3 / samples:.1%} of answers can "
            "stay unseen in so many"
        )
    if best is None:
        yield f"nothing is stopped early: the model is read at its own depth; ask for step {most} to read at full depth"
        return
    ties = [each.rule for each in trials if each.holds and each.steps == best.steps and each is not best]
    if ties:
        yield f"{', '.join(ties)} takes as many steps as {best.rule}, which is kept as the first of them"
    if best.rule == "confidence":
        yield (
            "confidence fails on problems deeper than those of training: a model can be sure, and wrong, before it "
            "could know"
        )
