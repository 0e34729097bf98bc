"""What an answer rests on: tokens, or whole modalities, are taken away, and the model is asked again.

Deletion and insertion tests say whether maps show what answers rest on: tokens go in the order of the map and in random
orders. Shapley values say how much of an answer each modality brings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.answers import Estimate, estimate
from meq.analysis.attribution import attribute
from meq.analysis.walk import Subject, of_token
from meq.core.operator import held_still
from meq.core.state import per_sample, token_mask
from meq.models.heads import probabilities
from meq.options import checked_options

LEVELS = (0.1, 0.3, 0.6)
"""Shares of the tokens that are taken away or kept."""
MOST_MODALITIES = 8
"""Up to this many modalities every subset is tried; more would take more than a few hundred answers."""
ROWS = 64
"""Samples that the model is asked about at once, each with some of its tokens."""
ORDERS = 3
"""Random orders per sample; a constant map prefers no token, so what it is worth is their mean."""


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """Deletion and insertion, by modality: what a map's order of tokens is worth above random orders.

    Deletion: the answer's probability falls faster if what it rests on goes first. Insertion: it rises sooner if that
    comes first. Both are means over LEVELS, and positive where the map is the better order.
    """

    method: str
    samples: int
    deletion: Mapping[str, Estimate]
    insertion: Mapping[str, Estimate]
    gain: Mapping[str, Estimate]
    """Their sum, per sample."""

    def beats_chance(self, name: str) -> bool:
        return self.gain[name].low > 0

    @property
    def words(self) -> str:
        weak = [name for name in self.gain if not self.beats_chance(name)]
        found = "; ".join(
            f"{name} {gain} (deletion {self.deletion[name]}, insertion {self.insertion[name]})"
            for name, gain in self.gain.items()
        )
        said = f"maps by {self.method} against random and constant ones, {self.samples} samples: {found}"
        return f"Maps of {' and '.join(weak)} are weak evidence for this model: {said}" if weak else said.capitalize()

    def __str__(self) -> str:
        return self.words


@checked_options
def measure_faithfulness(
    model: Subject, batches: Iterable[Any], *, method: str, step: int | None = None, seed: int = 0
) -> Faithfulness:
    """Deletion and insertion tests of the maps at one step, K unless given, of the model's own answers.

    `batches` have `features` and `masks`, as tokens (B N W). A token is taken away by its mask, as padding is, so that
    the model sees fewer tokens and no strange ones; of an absent modality its stand-in. Modalities of single tokens
    have no order to test; multiple choice, where maps are of one choice among several rows, is refused.
    """
    if model.head_kind == "choices":
        raise ValueError("the deletion test is not made for multiple choice: a token belongs to one choice of several")
    generator = torch.Generator().manual_seed(seed)
    rows: dict[str, list[Tensor]] = {}
    for batch in batches:
        features, masks = dict(batch.features), dict(batch.masks or {})
        at = model.steps if step is None else step
        maps = attribute(model, features, masks, method=method, steps=[at])
        with torch.no_grad(), held_still(model):
            question = _Question(
                model, features, masks, _of_token(model(features, masks).logits, maps.token), maps.token
            )
            finite = torch.isfinite(question.logits).all(1)
            for name, values in maps.maps.items():
                if name in features and features[name].ndim == 3:
                    found = _compared(question, name, values[0], generator)
                    kept = (question.real(name).sum(1) > 1) & finite  # of a single token there is no order to test
                    rows.setdefault(name, []).append(found[~maps.lost[0].cpu() & kept.cpu()])
    joined = {name: torch.cat(parts) for name, parts in rows.items()}
    joined = {name: values for name, values in joined.items() if len(values)}
    if not joined:
        raise ValueError("no sample has two tokens of a modality that the maps are of: there is no order to test")
    return Faithfulness(
        method=method,
        samples=max(len(values) for values in joined.values()),
        deletion={name: estimate(values[:, 0], seed) for name, values in joined.items()},
        insertion={name: estimate(values[:, 1], seed) for name, values in joined.items()},
        gain={name: estimate(values.sum(1), seed) for name, values in joined.items()},
    )


@dataclass(frozen=True, eq=False)
class _Question:
    """A batch before the model, and how sure the model stays of its answer when tokens go."""

    model: Any
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    logits: Float[Tensor, "B C"]
    """The answer to the whole samples; with head="tokens" that of the token which the maps explain."""
    token: Int[Tensor, " B"] | None

    def real(self, name: str) -> Bool[Tensor, "B N"]:
        return token_mask(self.masks.get(name), self.features[name])

    def sureness(self, name: str, masks: Sequence[Bool[Tensor, "B N"]]) -> Float[Tensor, " L B"]:
        """What the answer to the whole sample gets with these tokens alone of one modality, for several such masks."""
        at_once = max(1, ROWS // len(self.logits))
        parts = [masks[start : start + at_once] for start in range(0, len(masks), at_once)]
        return torch.cat([self._sureness(name, part) for part in parts])

    def _sureness(self, name: str, masks: Sequence[Bool[Tensor, "B N"]]) -> Float[Tensor, " L B"]:
        def repeated(x: Tensor) -> Tensor:
            return x.repeat(len(masks), *[1] * (x.ndim - 1))

        features = {each: repeated(x) for each, x in self.features.items()}
        given = {each: repeated(x) for each, x in self.masks.items()} | {name: torch.cat(list(masks))}
        token = None if self.token is None else repeated(self.token)
        logits = _of_token(self.model(features, given).logits, token)
        return sureness(logits, repeated(self.logits), self.model.head_kind).reshape(len(masks), -1)


def _of_token(logits: Tensor, token: Tensor | None) -> Float[Tensor, "B C"]:
    return logits if token is None else of_token(logits, token)


def sureness(
    logits: Tensor, whole: Tensor, head: str, answered: Bool[Tensor, "B N"] | None = None
) -> Float[Tensor, " B"]:
    """The probability of the answer that `whole` gives; for a number minus the distance to it.

    Of answers per token (B N C) the mean over the tokens that answered; one that was taken away is as sure as chance.
    """
    if head == "score":
        return -(logits - whole)[:, 0].abs().double().cpu()
    if logits.ndim == 3:
        chances = probabilities(logits, head).take_along_dim(whole.argmax(-1, keepdim=True), dim=-1)[..., 0].double()
        real = torch.ones_like(chances) if answered is None else answered.to(chances)
        return ((chances * real).sum(1) / real.sum(1).clamp(min=1)).cpu()
    return probabilities(logits, head).gather(1, whole.argmax(1, keepdim=True))[:, 0].double().cpu()


def _compared(
    question: _Question, name: str, values: Float[Tensor, "B N"], generator: torch.Generator
) -> Float[Tensor, "B 2"]:
    """Deletion and insertion of the map, each above the mean of random orders."""
    # tokens of one value are put in a random order: a map that is constant must not gain by where its tokens lie
    jitter = torch.rand(values.shape, generator=generator).to(values.device)
    by_map = _ranks(values, jitter, question.real(name))
    drawn = [torch.rand(values.shape, generator=generator).to(values.device) for _ in range(ORDERS)]
    by_chance = [_ranks(torch.zeros_like(values), each, question.real(name)) for each in drawn]
    random = torch.stack([_curves(question, name, ranks) for ranks in by_chance]).mean(0)
    return (_curves(question, name, by_map) - random) * torch.tensor([-1.0, 1.0], dtype=torch.float64)


def _ranks(values: Tensor, jitter: Tensor, real: Bool[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """Each real token's place in its order as a share, 0 for the largest value; padding comes after all."""
    order = jitter.argsort(1, descending=True)
    sorted_values = values.masked_fill(~real, -torch.inf).gather(1, order)
    order = order.gather(1, sorted_values.argsort(dim=1, descending=True, stable=True))
    places = torch.arange(values.shape[1], device=values.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)
    return ranks / real.sum(1, keepdim=True).clamp(min=1)


def _curves(question: _Question, name: str, ranks: Float[Tensor, "B N"]) -> Float[Tensor, "B 2"]:
    """The mean sureness without the first tokens, and with the first tokens alone."""
    real = question.real(name)
    without = [real & (ranks >= level) for level in LEVELS]
    alone = [real & (ranks < level) for level in LEVELS]
    found = question.sureness(name, [*without, *alone])
    return torch.stack([part.mean(0) for part in found.split(len(LEVELS))], dim=1)


def modality_effects(
    model: Any,
    features: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None = None,
    *,
    token: Int[Tensor, " B"] | None = None,
) -> dict[str, Float[Tensor, " B"]]:
    """What each modality adds to the answer's probability, in fair shares; NaN where a sample lacks it.

    phi_m = sum over sets S without m of |S|! (n - |S| - 1)! / n! (v(S + m) - v(S)), with v(S) the probability of the
    answer to the whole sample when only the modalities of S are there, and chance when none is. The effects add up to
    the answer's probability above chance. For a number v is minus the distance to the whole answer, and -|answer| when
    nothing is there; of answers per token it is the mean over the tokens, or that of `token`, one of each sample,
    counted as in the logits. A model that was trained without modality dropout has never seen a modality missing.
    """
    names = list(features)
    if len(names) > MOST_MODALITIES:
        raise ValueError(f"{len(names)} modalities have too many subsets to ask about: {MOST_MODALITIES} at most")
    given = {name: token_mask((masks or {}).get(name), x).reshape(len(x), -1).any(1) for name, x in features.items()}
    with torch.no_grad(), held_still(model):
        output = model(features, masks)
        worth = {
            chosen: _worth(model, features, dict(masks or {}), given, chosen, output, token)
            for size in range(len(names) + 1)
            for chosen in itertools.combinations(names, size)
        }
    effects, count = {}, len(names)
    for name in names:
        total, others = torch.zeros_like(worth[()]), [other for other in names if other != name]
        for size in range(count):
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for chosen in itertools.combinations(others, size):
                joined = tuple(each for each in names if each in chosen or each == name)
                total += weight * (worth[joined] - worth[chosen])
        effects[name] = total.where(given[name].cpu(), torch.nan)
    return effects


def as_shares(effects: Mapping[str, float]) -> dict[str, float]:
    """Sizes of the effects as shares of their sum; modalities that are not there are left out."""
    sizes = {name: abs(value) for name, value in effects.items() if math.isfinite(value)}
    total = sum(sizes.values())
    return {name: size / total if total > 0 else math.nan for name, size in sizes.items()}


def _worth(
    model: Any,
    features: Mapping[str, Tensor],
    masks: dict[str, Tensor],
    given: Mapping[str, Tensor],
    chosen: tuple[str, ...],
    output: Any,
    token: Int[Tensor, " B"] | None,
) -> Float[Tensor, " B"]:
    """v(S) per sample; where a sample has none of the chosen modalities, that of an answer to nothing."""
    whole = _of_token(output.logits, token)
    answered = getattr(output, "answered", None) if token is None else None
    if model.head_kind == "score":
        nothing = -whole[:, 0].abs().double().cpu()
    else:
        chance = 0.5 if model.head_kind == "labels" else 1 / whole.shape[-1]
        nothing = torch.full((len(whole),), chance, dtype=torch.float64)
    if not chosen:
        return nothing
    some = torch.stack([given[name] for name in chosen]).any(0)
    # a mask of nothing, but for samples that would be left without any modality
    real = {name: token_mask(masks.get(name), x) for name, x in features.items() if name not in chosen}
    hidden = {name: mask & ~per_sample(some, mask) for name, mask in real.items()}
    logits = _of_token(model(features, {**masks, **hidden}).logits, token)
    return sureness(logits, whole, model.head_kind, answered).where(some.cpu(), nothing)
