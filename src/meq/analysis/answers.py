"""What the answers owe to training and to each modality: against constant answers, and with a modality shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from meq.analysis.tables import number
from meq.core.operator import held_still
from meq.core.state import token_mask

FEWEST = 20
"""Labelled samples that can say anything: of fewer, intervals by resampling are too narrow."""
RESAMPLES, LEVEL = 2000, 0.95
DRAWS = 2
"""Shufflings of each modality; their losses are averaged sample by sample."""
BATCH = 64
HARDLY = 0.1
"""A modality whose shuffling changes less than this share of the answers does not count, however sure its loss is."""
NEAR = 0.1
"""An answer that is a number counts as changed if it moves by more than this share of the targets' deviation."""


@dataclass(frozen=True)
class Estimate:
    """A mean over samples with its 95 % interval, by seeded resampling of the samples (paired percentile bootstrap)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value)} [{number(self.low)}, {number(self.high)}]"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Measured on labelled samples; every difference is paired, sample by sample."""

    samples: int
    lost: int
    """Samples whose logits are not finite: wrong answers, and left out where answers are numbers."""
    score_name: str
    score: float
    """Share of right answers, with head="tokens" of the tokens that are asked; for soft labels what the answers are
    worth; for numbers the mean error, negative."""
    constant: float
    """The score of the best constant answer on these samples: the most frequent class, or the median."""
    chance: float
    """The score of an answer drawn at random; NaN for numbers."""
    gain: Estimate
    """The score above the better of constant and chance."""
    losses: Mapping[str, Estimate]
    """By modality: what the score loses when the modality is shuffled across the samples."""
    changed: Mapping[str, float]
    """By modality: the share of answers that its shuffling changes."""
    absent: tuple[str, ...] = ()
    """Modalities that the model reads and no labelled sample has: nothing is known of them."""

    @property
    def enough(self) -> bool:
        return self.samples >= FEWEST

    @property
    def learned(self) -> bool:
        return self.gain.low > 0

    def counts(self, name: str) -> bool:
        return self.losses[name].low > 0 and self.changed[name] >= HARDLY


def measure_answers(model: Any, data: Iterable[Any] | Any, *, seed: int = 0) -> Answers:
    """Score the model on labelled batches (`features`, `masks`, `target`), as they are and with modalities shuffled.

    A sample gets the tokens of another one, drawn from all that have the modality, never its own. Everything is held
    in memory once: give hundreds of samples, not a whole data set.
    """
    batches = [data] if hasattr(data, "features") else list(data)
    head = str(getattr(model, "head_kind", "classes"))
    pool = Pool.of(batches, model.answering if head == "tokens" else ())
    with torch.no_grad(), held_still(model):
        logits = pool.answered(model)
        scorer = Scorer.of(logits, pool.target, head)
        losses, changed = {}, {}
        random = np.random.default_rng(seed)
        for name in pool.names:
            drawn = [pool.answered(model, pool.shuffled(name, random)) for _ in range(DRAWS)]
            loss = torch.stack([scorer.points - scorer.scored(each) for each in drawn]).mean(0)
            losses[name] = estimate(loss[scorer.kept], seed, pool.owner)
            changed[name] = float(torch.stack([scorer.changed(each) for each in drawn]).mean())
    # the gain is above the better of the two, paired with the constant answer where that is the better one
    points, constant = scorer.points[scorer.kept], scorer.constant[scorer.kept]
    rival = torch.full_like(constant, scorer.chance) if float(constant.mean()) < scorer.chance else constant
    return Answers(
        samples=int(scorer.kept.sum()) if pool.owner is None else len(pool.rows),
        lost=scorer.lost,
        score_name=scorer.name,
        score=float(points.mean()),
        constant=float(scorer.constant.mean()),
        chance=scorer.chance,
        gain=estimate(points - rival, seed, pool.owner),
        losses=losses,
        changed=changed,
        absent=tuple(name for name in getattr(model, "widths", {}) if not pool.has(name)),
    )


@dataclass(frozen=True, eq=False)
class Scorer:
    """Points per sample, those of the best constant answer, and the score of chance."""

    head: str
    name: str
    target: Tensor
    logits: Float[Tensor, "N C"]
    constant: Float[Tensor, " N"]
    chance: float

    @classmethod
    def of(cls, logits: Tensor, target: Tensor, head: str) -> Scorer:
        if head == "score":
            target = target.double().reshape(len(target))
            return cls(head, "negative absolute error", target, logits, -(target - target.median()).abs(), torch.nan)
        if head == "labels":
            worth = target.double()
            return cls(
                head, "soft accuracy", target, logits, worth[:, int(worth.mean(0).argmax())], float(worth.mean())
            )
        target = target.long().reshape(len(target))
        right = (target == target.mode().values).double()
        return cls(head, "accuracy", target, logits, right, 1 / logits.shape[1])

    @property
    def points(self) -> Float[Tensor, " N"]:
        return self.scored(self.logits)

    @property
    def kept(self) -> Tensor:
        """The samples that count: all but numbers that are none."""
        return self._finite(self.logits) if self.head == "score" else torch.ones(len(self.logits), dtype=torch.bool)

    @property
    def lost(self) -> int:
        return int((~self._finite(self.logits)).sum())

    def scored(self, logits: Tensor) -> Float[Tensor, " N"]:
        if self.head == "score":
            return -(logits[:, 0].double() - self.target).abs()
        said = logits.argmax(1)
        if self.head == "labels":
            points = self.target.double().gather(1, said[:, None])[:, 0]
        else:
            points = (said == self.target).double()
        return points.where(self._finite(logits), 0.0)

    def changed(self, logits: Tensor) -> Float[Tensor, " N"]:
        if self.head == "score":
            moved = (logits[:, 0] - self.logits[:, 0]).double().abs()
            return (moved > NEAR * self.target.std(correction=0)).double()
        return (logits.argmax(1) != self.logits.argmax(1)).double()

    @staticmethod
    def _finite(logits: Tensor) -> Tensor:
        return torch.isfinite(logits).all(1)


def estimate(values: Float[Tensor, " N"], seed: int, owner: Int[Tensor, " N"] | None = None) -> Estimate:
    """The mean with its interval. `owner` says whose values they are where a sample has several, which are no strangers
    to each other: it is drawn with all of them."""
    if len(values) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"))
    tail = (1 - LEVEL) / 2
    if owner is not None:
        counts, sums = owner.bincount().numpy(), owner.bincount(values.double()).numpy()
        counts, sums = counts[counts > 0], sums[counts > 0]
        rows = np.random.default_rng(seed).integers(0, len(counts), (RESAMPLES, len(counts)))
        low, high = np.quantile(sums[rows].sum(1) / counts[rows].sum(1), [tail, 1 - tail])
        return Estimate(float(values.double().mean()), float(low), float(high))
    numbers = values.numpy()
    rows = np.random.default_rng(seed).integers(0, len(numbers), (RESAMPLES, len(numbers)))
    low, high = np.quantile(numbers[rows].mean(1), [tail, 1 - tail])
    return Estimate(float(numbers.mean()), float(low), float(high))


Sample = dict[str, tuple[Tensor, Tensor]]
"""One sample: by modality its tokens, or its vector, and which of them are real."""


class Pool:
    """Labelled samples one by one, so that a modality of one can be given to another whatever batch it came in."""

    def __init__(self, rows: list[Sample], targets: list[Tensor], answering: Sequence[str]) -> None:
        self.rows, self.answering = rows, answering
        self.asked = [target >= 0 for target in targets] if answering else None
        """With answers per token: which tokens of each sample are asked; only they are answers."""
        self.owner: Tensor | None = None
        """Whose answer each is, where a sample has several."""
        if self.asked is None:
            self.target = torch.stack(targets)
        else:
            self.target = torch.cat([target[asked] for target, asked in zip(targets, self.asked, strict=True)])
            counts = torch.tensor([int(asked.sum()) for asked in self.asked])
            self.owner = torch.arange(len(rows)).repeat_interleave(counts)
        self.names = list(dict.fromkeys(name for row in rows for name in row))

    @classmethod
    def of(cls, batches: Sequence[Any], answering: Sequence[str] = ()) -> Pool:
        if not batches:
            raise ValueError("there were no labelled batches: a generator that was used up, or an empty split?")
        rows: list[Sample] = []
        targets: list[Tensor] = []
        for place, batch in enumerate(batches):
            target = _checked_target(batch, place)
            targets += target.detach().cpu()
            real = {name: token_mask((batch.masks or {}).get(name), x) for name, x in batch.features.items()}
            rows += [
                {name: (x[row], real[name][row]) for name, x in batch.features.items()} for row in range(len(target))
            ]
        return cls(rows, targets, answering)

    def has(self, name: str) -> bool:
        return any(has_tokens(row, name) for row in self.rows)

    def partners(self, name: str, random: np.random.Generator) -> list[int]:
        """Whose tokens each sample gets: another sample's; its own where it has none or is the only one that has."""
        given = list(range(len(self.rows)))
        order = random.permutation([row for row in given if has_tokens(self.rows[row], name)])
        for place, row in enumerate(order):
            given[int(row)] = int(order[(place + 1) % len(order)])
        return given

    def shuffled(self, name: str, random: np.random.Generator) -> list[Sample]:
        """The samples, each with the modality of another one."""
        given = self.partners(name, random)
        return [{**row, **_only(self.rows[at], name)} for row, at in zip(self.rows, given, strict=True)]

    def answered(self, model: Any, rows: Sequence[Sample] | None = None) -> Float[Tensor, "N C"]:
        """The model's logits; `rows` are the samples with something changed, in their order."""
        rows = self.rows if rows is None else rows
        weight = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
        found = []
        for start in range(0, len(rows), BATCH):
            places = range(start, min(start + BATCH, len(rows)))
            there = [name for name in self.names if any(name in rows[at] for at in places)]
            made = {name: _stacked([rows[at].get(name) for at in places]) for name in there}
            features = {name: x for name, (x, _) in made.items()}
            masks = {name: mask for name, (_, mask) in made.items() if mask is not None}
            if weight is not None:  # samples may wait elsewhere than where the model computes
                features, masks = (_on(x, weight.device) for x in (features, masks))
            output = model(features, masks)
            logits = output.logits
            if logits is None:
                raise ValueError(f"{type(model).__name__} was built without classes: it gives no answers to score")
            if self.asked is None:
                found.append(logits.float().cpu())
            else:
                real = getattr(output, "answered", None)
                known = logits if real is None else logits.masked_fill(~real[..., None], torch.nan)
                found += self._asked_rows(known.float().cpu(), features, places)
        return torch.cat(found)

    def _asked_rows(
        self, logits: Float[Tensor, "B N C"], features: Mapping[str, Tensor], places: range
    ) -> list[Tensor]:
        """The logits of the tokens a sample is asked about; NaN for those that another's tokens do not reach."""
        assert self.asked is not None
        lengths = {name: _count(features[name][0]) if name in features else 1 for name in self.answering}
        found = []
        for row, at in zip(logits, places, strict=True):
            blocks = row.split(list(lengths.values()))
            own = [_count(self.rows[at][name][0]) if name in self.rows[at] else 1 for name in self.answering]
            fitted = [
                F.pad(block[:count], (0, 0, 0, max(0, count - len(block))), value=torch.nan)
                for block, count in zip(blocks, own, strict=True)
            ]
            found.append(torch.cat(fitted)[self.asked[at]])
        return found


def _on(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: x.to(device) for name, x in tensors.items()}


def _checked_target(batch: Any, place: int) -> Tensor:
    target = getattr(batch, "target", None)
    if not isinstance(getattr(batch, "features", None), Mapping) or not isinstance(target, Tensor):
        raise TypeError(
            f"batch {place} of the data must be an object with `features` (a dict of tensors by modality), `masks` (a "
            f"dict or None) and `target` (a tensor of labels), got {type(batch).__name__}"
            + (f" whose target is {type(target).__name__}" if hasattr(batch, "features") else "")
        )
    sizes = {name: len(x) for name, x in batch.features.items()}
    if any(size != len(target) for size in sizes.values()):
        raise ValueError(f"batch {place} of the data has {len(target)} targets for {sizes} samples")
    return target


def _count(x: Tensor) -> int:
    """Tokens of one sample; a vector is one."""
    return len(x) if x.ndim > 1 else 1


def _only(row: Sample, name: str) -> Sample:
    return {name: row[name]} if name in row else {}


def has_tokens(row: Sample, name: str) -> bool:
    return name in row and bool(row[name][1].any())


def _stacked(parts: Sequence[tuple[Tensor, Tensor] | None]) -> tuple[Tensor, Tensor | None]:
    """Samples in one batch, short ones padded along the tokens, which come last but one; a mask if any is needed."""
    like, real = next(part for part in parts if part is not None)
    filled = [(torch.zeros_like(like), torch.zeros_like(real)) if part is None else part for part in parts]
    if like.ndim > 1:
        longest = max(x.shape[-2] for x, _ in filled)
        missing = [longest - x.shape[-2] for x, _ in filled]
        filled = [(F.pad(x, (0, 0, 0, m)), F.pad(real, (0, m))) for (x, real), m in zip(filled, missing, strict=True)]
    mask = torch.stack([real for _, real in filled])
    return torch.stack([x for x, _ in filled]), None if bool(mask.all()) else mask
