"""Is it iterating at all? Five questions to a model that iterates, on labelled samples, and a verdict in words.

Read the start instead of the end; start elsewhere; compare steps with difficulty; ask whether the residual knows which
answers are wrong; go on far beyond K. What follows from the numbers is said in `meq.analysis.audit_findings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from meq.analysis.answers import LEVEL, NEAR, Estimate, estimate
from meq.analysis.audit_findings import (
    Audit,
    Depth,
    Restart,
    Settling,
    check_depth,
    check_keeping,
    check_path,
    check_residual,
    check_start,
)
from meq.analysis.tables import join_samples, middle
from meq.analysis.verdict import SAME_STATE
from meq.analysis.walk import Case, Subject, answer, check_iterates, open_case
from meq.core.operator import RestartedOperator, held_still
from meq.core.state import State, per_sample, token_mask
from meq.options import checked_options

TIMES = (2, 5, 50)
"""How far beyond K is read, in multiples of it."""
LONG = 5
"""In multiples of K: how long answers are watched for settling, and how long a sample that starts elsewhere has."""
MOST_STEPS = 2000
"""No sample is walked further, unless K itself lies beyond."""
RESAMPLES = 1000
Row = Shaped[np.ndarray, " A"]
ANOTHER, NOISE = "another's end", "noise"
SCORES = {"labels": "soft accuracy", "score": "error removed"}
"""By head; all others are scored by accuracy. For numbers 1 - |error| / mean |target - median|: 0 is what one constant
answer has, and no answer counts for less than -1."""


@checked_options
def audit_model(model: Subject, batches: Iterable[Any], *, seed: int = 0, of: str = "") -> Audit:
    """Audit a model on `batches` that have `features`, `masks` and `target`, on its device; hundreds of samples do.

    A batch may say how hard its samples are, or its tokens, in a tensor `difficulty` (B, or B N); otherwise the loss
    after one step stands for it. Every sample takes every step, whatever the model's tolerance. With answers per token
    each token that is asked counts, and its residual is its own. Multiple choice is refused.
    """
    check_auditable(model)
    depths = _Depths.of(model.steps)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad(), held_still(model):
        parts = [_look(model, batch, place, depths, generator) for place, batch in enumerate(batches)]
    if not parts:
        raise ValueError("there were no batches: a generator that was used up, or an empty split?")
    if len({part.difficulty is None for part in parts}) > 1:
        raise ValueError("some batches say how hard their samples are and some do not: let all of them, or none")
    return _judged(model.head_kind, depths, _joined(parts), seed=seed, of=of)


def check_auditable(model: Any) -> None:
    """It iterates, and has one state for each sample that it answers."""
    check_iterates(model)
    if model.head_kind == "choices":
        raise ValueError(
            "the audit is not made for multiple choice: every choice has states of its own, and an answer is of all of "
            "them together"
        )


@dataclass(frozen=True)
class _Depths:
    """Which steps are looked at."""

    read: int
    long: int
    marks: tuple[int, ...]
    """0, 1, K and its multiples."""
    capped: bool

    @classmethod
    def of(cls, read: int) -> _Depths:
        horizon = max(read, min(TIMES[-1] * read, MOST_STEPS))
        later = [times * read for times in TIMES if times * read <= horizon]
        marks = tuple(sorted({0, 1, read, *later, horizon}))
        return cls(read, min(LONG * read, horizon), marks, horizon < TIMES[-1] * read)


@dataclass(frozen=True, eq=False)
class _Return:
    """What became of a batch that started elsewhere. R samples, A answers."""

    alignment: dict[str, Float[Tensor, " R"]]
    apart: dict[str, Float[Tensor, " R"]]
    said: Float[Tensor, " A"]
    known: Bool[Tensor, " A"]
    """False for the answers of samples that had no other's state to start from."""


@dataclass(frozen=True, eq=False)
class _Part:
    """What was seen of one batch, on the CPU. M marks, R samples, A answers (samples, or tokens that are asked)."""

    owner: Int[Tensor, " A"]
    """Whose answer it is."""
    target: Tensor
    difficulty: Float[Tensor, " A"] | None
    logits: Float[Tensor, "M A C"]
    said: Float[Tensor, "L A"]
    """The class, or the number, at every step from 0 to five times K; -1 or NaN where it is not finite."""
    residuals: Float[Tensor, "M R"]
    """The largest over modalities; infinite where the state has diverged."""
    residual: Float[Tensor, " A"]
    """At K, of each answer: that of its sample, or of its token."""
    stopped: Int[Tensor, " R"]
    returns: dict[tuple[str, int], _Return]


def _look(model: Subject, batch: Any, place: int, depths: _Depths, generator: torch.Generator) -> _Part:
    head = model.head_kind
    case = open_case(model, batch.features, batch.masks)
    target = _target(batch, case.answer, head, place)
    asked = target >= 0 if head == "tokens" else torch.ones(len(target), dtype=torch.bool)
    steps = sorted({*range(depths.long + 1), *depths.marks})
    readings = case.read_along(steps)
    logits = readings.logits[:, asked]  # S A C
    rows = [steps.index(k) for k in depths.marks]
    known = torch.stack([values[rows] for values in readings.residuals.values()])
    largest = known.nan_to_num(nan=-1.0).amax(0)
    residuals = torch.where(largest < 0, math.inf, largest).double()
    own = _walked(case, None, sorted({depths.read, depths.long}))
    at_read = residuals[depths.marks.index(depths.read)]
    if head == "tokens":
        each = case.token_residuals(own[depths.read]).double().cpu().nan_to_num(nan=math.inf)
        at_read = torch.where(at_read.isinf()[:, None], math.inf, each)  # of a diverged sample, which it has no more
    return _Part(
        owner=asked.nonzero()[:, 0],
        target=target[asked],
        difficulty=_difficulty(batch, asked, place),
        logits=logits[rows].double(),
        said=_said(logits[: depths.long + 1], head),
        residuals=residuals,
        residual=at_read[asked],
        stopped=readings.stopped,
        returns=_returns(case, own, depths, asked, generator),
    )


def _returns(
    case: Case, own: dict[int, State], depths: _Depths, asked: Tensor, generator: torch.Generator
) -> dict[tuple[str, int], _Return]:
    """Every sample again, from the state that its neighbour in the batch ends in, and from random numbers.

    `own` are the states that it comes to by itself, at the steps that are compared.
    """
    stops, others = list(own), {}
    start, end = case.solution.operator.start(case.solution.inputs), own[depths.read]
    masks = case.solution.masks
    real = {name: token_mask(masks.get(name), z) for name, z in start.items()}
    # what a token of one sample and none of the other would bring stays as the sample's own start has it
    shared = {name: mask & mask.roll(1, 0) for name, mask in real.items()}
    draws = {name: torch.randn(z.shape, generator=generator, dtype=torch.float64).to(z) for name, z in start.items()}
    alone = len(asked) == 1
    for label, given, where in (
        (ANOTHER, {name: z.roll(1, 0) for name, z in end.items()}, shared),
        (NOISE, draws, real),
    ):
        begun = {name: torch.where(per_sample(where[name], z), given[name], z) for name, z in start.items()}
        walked = _walked(case, begun, stops)
        for k in stops:
            alignment = {name: _cosine(own[k][name], z, real[name]) for name, z in walked[k].items()}
            between = {name: _cosine(z, z.roll(1, 0), shared[name]) for name, z in own[k].items()}
            apart = {name: _share(value, between[name], label) for name, value in alignment.items()}
            if alone and label == ANOTHER:
                alignment = {name: torch.full_like(value, math.nan) for name, value in alignment.items()}
            said = _said(case.read(walked[k]).cpu()[asked], case.model.head_kind)
            known = torch.full(said.shape, not (alone and label == ANOTHER))
            others[label, k] = _Return(alignment, apart, said, known)
    return others


def _walked(case: Case, start: State | None, stops: list[int]) -> dict[int, State]:
    """The states at some steps, from the model's own start or from another one."""
    if start is not None:
        begun = RestartedOperator(case.solution.operator, start)
        case = replace(case, solution=replace(case.solution, operator=begun))
    found = case.walk(stops[-1], trajectory=stops).trajectory
    assert found is not None
    return found


def _cosine(a: Tensor, b: Tensor, real: Bool[Tensor, "*axes"]) -> Float[Tensor, " R"]:
    """Per sample over its real tokens; NaN where it has none."""
    x, y = (z.double().masked_fill(~per_sample(real, z), 0).flatten(1).cpu() for z in (a, b))
    return (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1))


def _share(alignment: Tensor, between: Tensor, label: str) -> Float[Tensor, " R"]:
    far = 1 - between
    usable = (far > SAME_STATE) & torch.tensor(label == ANOTHER)
    return torch.where(usable, (1 - alignment) / far, math.nan)


def _target(batch: Any, logits: Tensor, head: str, place: int) -> Tensor:
    target = getattr(batch, "target", None)
    if not isinstance(target, Tensor):
        raise ValueError(f"batch {place} has no target: an audit is of right and wrong answers, so it needs labels")
    target = target.detach().cpu()
    if head == "score":
        return target.double().reshape(len(target))
    wanted = tuple(logits.shape) if head == "labels" else tuple(logits.shape[:-1])
    if tuple(target.shape) != wanted:
        raise ValueError(
            f"batch {place}: its target has shape {tuple(target.shape)}, and to these answers it must be {wanted}"
        )
    return target.double() if head == "labels" else target.long()


def _difficulty(batch: Any, asked: Bool[Tensor, "*axes"], place: int) -> Float[Tensor, " A"] | None:
    found = getattr(batch, "difficulty", None)
    if found is None:
        return None
    values = torch.as_tensor(found).double().cpu()
    if values.shape not in (asked.shape, asked.shape[:1]):
        raise ValueError(f"batch {place}: difficulty has shape {tuple(values.shape)}, expected {tuple(asked.shape)}")
    return per_sample(values, asked).expand(asked.shape)[asked]


def _said(logits: Float[Tensor, "*axes C"], head: str) -> Float[Tensor, "*axes"]:
    return (logits[..., 0] if head == "score" else answer(logits, head)[0]).double()


def _joined(parts: list[_Part]) -> _Part:
    """All batches as one."""
    counts = [len(part.stopped) for part in parts]
    before = [sum(counts[:place]) for place in range(len(counts))]
    return _Part(
        owner=torch.cat([part.owner + first for part, first in zip(parts, before, strict=True)]),
        target=torch.cat([part.target for part in parts]),
        difficulty=None if parts[0].difficulty is None else join_samples([part.difficulty for part in parts]),
        logits=torch.cat([part.logits for part in parts], 1),
        said=torch.cat([part.said for part in parts], 1),
        residuals=torch.cat([part.residuals for part in parts], 1),
        residual=torch.cat([part.residual for part in parts]),
        stopped=torch.cat([part.stopped for part in parts]),
        returns={key: join_samples([part.returns[key] for part in parts]) for key in parts[0].returns},
    )


# -- from what was seen to numbers -------------------------------------------------------------------------------------


def _judged(head: str, depths: _Depths, seen: _Part, *, seed: int, of: str) -> Audit:
    samples, answers = len(seen.stopped), len(seen.owner)
    if answers == 0:
        raise ValueError("no token is asked: every target is negative, so there is no answer to judge")
    resample = _Resampler(seen.owner, samples, seed)
    points = torch.stack([_points(logits, seen.target, head) for logits in seen.logits])  # M A
    at = {step: row for row, step in enumerate(depths.marks)}
    end = points[at[depths.read]]
    right = end > (end.median() if head == "score" else 0)
    gain, later_gain = (resample.mean(end - points[at[step]]) for step in (0, 1))
    along = tuple(
        Depth(
            step=step,
            score=float(points[row].mean()),
            change=resample.mean(points[row] - end),
            same=resample.mean(_same(_said(seen.logits[row], head), seen.said[depths.read], seen.target, head)),
            residual=middle(seen.residuals[row]),
            lost=int(((seen.stopped >= 0) & (seen.stopped < step)).sum()),
        )
        for step, row in at.items()
    )
    restarts = tuple(
        _restart(key, found, seen.said[key[1]], resample, seen.target, head) for key, found in seen.returns.items()
    )
    settling = _settling(seen, head, at[1], resample)
    errors = int((~right).sum())
    auroc = resample.auroc(seen.residual, ~right)
    return Audit(
        of=of,
        samples=samples,
        answers=answers,
        tokens=head == "tokens",
        read=depths.read,
        capped=depths.marks[-1] if depths.capped else None,
        score_name=SCORES.get(head, "accuracy"),
        errors=errors,
        gain=gain,
        later_gain=later_gain,
        along=along,
        restarts=restarts,
        settling=settling,
        auroc=auroc,
        checks=(
            check_start(gain, later_gain, read=depths.read, samples=samples),
            check_path(restarts, samples=samples),
            check_depth(settling, samples=samples),
            check_residual(auroc, errors=errors, answers=answers, samples=samples, tokens=head == "tokens"),
            check_keeping(along, read=depths.read, samples=samples),
        ),
    )


def _points(logits: Float[Tensor, "A C"], target: Tensor, head: str) -> Float[Tensor, " A"]:
    """What each answer is worth, see SCORES; an answer that is not finite is worth nothing."""
    if head == "score":
        usual = (target - target.median()).abs().mean().clamp(min=torch.finfo(torch.float64).tiny)
        return (1 - (logits[:, 0] - target).abs() / usual).clamp(min=-1).nan_to_num(nan=-1.0)
    said = answer(logits, head)[0]
    if head == "labels":
        return target.gather(1, said.clamp(min=0)[:, None])[:, 0].where(said >= 0, 0.0)
    return (said == target).double()


def _same(a: Tensor, b: Tensor, target: Tensor, head: str) -> Float[Tensor, "*axes"]:
    """Whether answers are the same; numbers are where they differ by little of the targets' deviation."""
    if head == "score":
        return ((a - b).abs() <= NEAR * target.std(correction=0)).double()
    return (a == b).double()


def _restart(
    key: tuple[str, int], found: _Return, said: Tensor, resample: _Resampler, target: Tensor, head: str
) -> Restart:
    same = _same(found.said, said, target, head).where(found.known, math.nan)
    first = next(iter(found.alignment.values()))
    reached = int((~torch.stack([*found.alignment.values()]).isnan()).any(0).sum()) if len(first) else 0
    return Restart(
        start=key[0],
        steps=key[1],
        samples=reached if bool(found.known.any()) else 0,
        alignment={name: middle(values) for name, values in found.alignment.items()},
        apart={name: middle(values) for name, values in found.apart.items()},
        agreeing=resample.mean(same),
    )


def _settling(seen: _Part, head: str, first: int, resample: _Resampler) -> Settling:
    kept = _same(seen.said, seen.said[-1], seen.target, head).flip(0).cumprod(0).sum(0)
    steps = len(seen.said) - kept.clamp(min=1)  # the first from which the answer stays what it is at the last
    counts = steps.long().bincount()
    if seen.difficulty is None:
        named, hard = "the loss after one step", _losses(seen.logits[first], seen.target, head)
    else:
        named, hard = "the difficulty that the samples state", seen.difficulty
    return Settling(
        fewest=int(steps.min()),
        median=middle(steps),
        most=int(steps.max()),
        usual=float(counts.max() / counts.sum()),
        difficulty=named,
        correlation=resample.correlation(steps, hard),
    )


def _losses(logits: Float[Tensor, "A C"], target: Tensor, head: str) -> Float[Tensor, " A"]:
    if head == "score":
        return (logits[:, 0] - target).abs()
    if head == "labels":
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)
    return F.cross_entropy(logits, target, reduction="none")


class _Resampler:
    """Statistics with 95 % intervals: samples are drawn again, each with all its answers, which are no strangers."""

    def __init__(self, owner: Int[Tensor, " A"], samples: int, seed: int) -> None:
        self.owner, self.samples, self.seed = owner, samples, seed
        order = owner.argsort(stable=True)
        self.rows = np.split(order.numpy(), np.searchsorted(owner[order].numpy(), np.arange(1, samples)))

    def mean(self, values: Tensor) -> Estimate:
        """NaN values are left out."""
        known = ~values.isnan()
        return estimate(values[known].double(), self.seed, self.owner[known])

    def correlation(self, steps: Tensor, hard: Tensor) -> Estimate:
        """Spearman's."""
        a, b = steps.double().numpy(), hard.double().numpy()
        kept = np.isfinite(b)
        return self._drawn(lambda rows: _spearman(a[rows[kept[rows]]], b[rows[kept[rows]]]))

    def auroc(self, residuals: Tensor, wrong: Bool[Tensor, " A"]) -> Estimate:
        score, positive = residuals.double().numpy(), wrong.numpy()
        return self._drawn(lambda rows: _auroc(score[rows], positive[rows]))

    def _drawn(self, statistic: Callable[[Row], float]) -> Estimate:
        every = np.concatenate(self.rows)
        value = statistic(every)
        if math.isnan(value):
            return Estimate(math.nan, math.nan, math.nan)
        random = np.random.default_rng(self.seed)
        draws = [random.integers(0, self.samples, self.samples) for _ in range(RESAMPLES)]
        if len(every) == self.samples and all(len(rows) == 1 for rows in self.rows):
            return _estimate(value, np.array([statistic(every[draw]) for draw in draws]))
        return _estimate(value, np.array([statistic(np.concatenate([self.rows[at] for at in draw])) for draw in draws]))


def _estimate(value: float, drawn: Row) -> Estimate:
    tail, known = (1 - LEVEL) / 2, drawn[~np.isnan(drawn)]
    if not len(known):
        return Estimate(float(value), math.nan, math.nan)
    low, high = np.quantile(known, [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))


def _ranks(values: Row) -> Row:
    """Tied values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((count.cumsum() - (count - 1) / 2)[place])


def _spearman(a: Row, b: Row) -> float:
    if len(a) < 2:
        return math.nan
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size > 0 else math.nan


def _auroc(score: Row, positive: Row) -> float:
    """P(a wrong answer's residual is larger than a right one's), ties one half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return math.nan
    above = float(_ranks(score)[positive].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)
