"""How much parts of the input count for the answers: modalities, columns of numbers, tokens.

By permutation: a part is given to another sample, again and again, so that it keeps its look and loses its meaning. By
removal: it is taken away, as padding is, or a number is set to its mean. Both are losses of score on labelled samples,
with intervals over samples and repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from meq.analysis.answers import LEVEL, RESAMPLES, Estimate, Pool, Sample, Scorer, has_tokens
from meq.core.operator import held_still

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something of the input: a whole modality, or numbers or tokens of it."""

    name: str
    modality: str
    numbers: tuple[int, ...] = ()
    """Places in its vectors; nothing for all."""
    tokens: tuple[int, ...] = ()
    """Places among its tokens; nothing for all."""

    @property
    def kind(self) -> str:
        return "column" if self.numbers else "token" if self.tokens else "modality"

    def in_sample(self, row: Sample) -> bool:
        """Whether the sample has any of it."""
        if not has_tokens(row, self.modality):
            return False
        real = row[self.modality][1]
        return not self.tokens or (min(self.tokens) < real.shape[-1] and bool(real[..., self._places(real)].any()))

    def _places(self, real: Tensor) -> list[int]:
        return [at for at in self.tokens if at < real.shape[-1]]

    def taken_from(self, row: Sample, other: Sample) -> Sample:
        """The sample with this part of another one. Of tokens those that both have."""
        if not self.numbers and not self.tokens:
            return {**row, self.modality: other[self.modality]}
        (x, real), (theirs, there) = row[self.modality], other[self.modality]
        x = x.clone()
        if self.numbers:
            x[..., list(self.numbers)] = theirs[..., list(self.numbers)]
        else:
            places = [at for at in self._places(real) if at < there.shape[-1]]
            both = (real[..., places] & there[..., places])[..., None]
            x[..., places, :] = torch.where(both, theirs[..., places, :], x[..., places, :])
        return {**row, self.modality: (x, real)}

    def removed_from(self, row: Sample, mean: Tensor) -> Sample:
        """The sample without this part; a column has its mean instead."""
        x, real = row[self.modality]
        if self.numbers:
            x = x.clone()
            x[..., list(self.numbers)] = mean[list(self.numbers)].to(x)
            return {**row, self.modality: (x, real)}
        real = real.clone()
        real[(..., self._places(real)) if self.tokens else ...] = False
        return {**row, self.modality: (x, real)}


@dataclass(frozen=True, kw_only=True)
class PartImportance:
    """What the score loses, over all samples."""

    name: str
    modality: str
    kind: str
    """modality, column or token."""
    samples: int
    """How many have it."""
    shuffled: Estimate
    """When the part is given to another sample: mean over repeats; the interval is over samples and repeats."""
    spread: float
    """The standard deviation over repeats."""
    changed: float
    """The share of answers that this changes."""
    removed: Estimate | None
    """When the part is taken away; None where no sample would keep anything."""


@dataclass(frozen=True, kw_only=True)
class Importances:
    """All parts on the same samples."""

    samples: int
    score_name: str
    score: Estimate
    parts: tuple[PartImportance, ...]


def measure_importance(
    model: Any,
    data: Iterable[Any],
    parts: Sequence[Part] | None = None,
    *,
    repeats: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
) -> Importances:
    """Shuffle and remove each part on labelled batches (`features`, `masks`, `target`): modalities unless told.

    Takes (repeats + 1) answers per sample and part, and one more. Everything is held in memory once.
    """
    if repeats < 1:
        raise ValueError(f"`repeats` must be at least 1, got {repeats}")
    pool = Pool.of(list(data), model.answering if model.head_kind == "tokens" else ())
    if parts is None:
        parts = [Part(name=name, modality=name) for name in pool.names]
    with torch.no_grad(), held_still(model):
        scorer = Scorer.of(pool.answered(model), pool.target, str(model.head_kind))
        found = []
        for part in parts:
            found.append(_part(model, pool, scorer, part, repeats, np.random.default_rng(seed)))
            if progress is not None:
                progress("shuffling and removing", len(found), len(parts))
    points = scorer.points[scorer.kept]
    return Importances(
        samples=len(pool.rows),
        score_name=scorer.name,
        score=over_repeats(points[None], seed, pool.owner),
        parts=tuple(found),
    )


def _part(
    model: Any, pool: Pool, scorer: Scorer, part: Part, repeats: int, random: np.random.Generator
) -> PartImportance:
    have = [at for at, row in enumerate(pool.rows) if part.in_sample(row)]
    drawn = [pool.answered(model, rows) for rows in _shuffles(pool, part, have, repeats, random)]
    losses = torch.stack([scorer.points - scorer.scored(each) for each in drawn])[:, scorer.kept]
    seed = int(random.integers(2**31))
    taken = _without(pool, part, have)
    lost = None if taken is None else (scorer.points - scorer.scored(pool.answered(model, taken)))[scorer.kept]
    return PartImportance(
        name=part.name,
        modality=part.modality,
        kind=part.kind,
        samples=len(have),
        shuffled=over_repeats(losses, seed, pool.owner),
        spread=float(losses.mean(1).std(correction=1)) if repeats > 1 else float("nan"),
        changed=float(torch.stack([scorer.changed(each) for each in drawn]).mean()),
        removed=None if lost is None else over_repeats(lost[None], seed, pool.owner),
    )


def _shuffles(
    pool: Pool, part: Part, have: Sequence[int], repeats: int, random: np.random.Generator
) -> Iterator[list[Sample]]:
    """The samples, each with the part of another that has it; never its own, unless it is the only one."""
    for _ in range(repeats):
        order, rows = random.permutation(have), list(pool.rows)
        for place, at in enumerate(order):
            rows[int(at)] = part.taken_from(pool.rows[int(at)], pool.rows[int(order[(place + 1) % len(order)])])
        yield rows


def _without(pool: Pool, part: Part, have: Sequence[int]) -> list[Sample] | None:
    """The samples without the part; those that would be left with nothing keep it, and None if all would."""
    mean = torch.zeros(0)
    if part.numbers:
        vectors = [pool.rows[at][part.modality] for at in have]
        mean = torch.cat([x.reshape(-1, x.shape[-1])[real.reshape(-1)] for x, real in vectors]).mean(0)
    rows = list(pool.rows)
    for at in have:
        without = part.removed_from(pool.rows[at], mean)
        if any(has_tokens(without, name) for name in without):
            rows[at] = without
    return None if have and all(rows[at] is pool.rows[at] for at in have) else rows


def over_repeats(values: Float[Tensor, "R N"], seed: int, owner: Int[Tensor, " N"] | None = None) -> Estimate:
    """The mean with its interval, by drawing samples and repeats anew; a sample with several values is drawn whole."""
    if values.numel() == 0:
        return Estimate(float("nan"), float("nan"), float("nan"))
    numbers, counts = values.double().numpy(), np.ones(values.shape[1])
    if owner is not None:
        counts = owner.bincount().double().numpy()
        numbers = np.stack([owner.bincount(row.double()).numpy() for row in values])[:, counts > 0]
        counts = counts[counts > 0]
    random, (repeats, samples) = np.random.default_rng(seed), numbers.shape
    by_repeat = random.multinomial(repeats, np.full(repeats, 1 / repeats), RESAMPLES) / repeats
    rows = random.multinomial(samples, np.full(samples, 1 / samples), RESAMPLES)
    means = ((by_repeat @ numbers) * rows).sum(1) / (rows @ counts)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(values.double().mean()), float(low), float(high))
