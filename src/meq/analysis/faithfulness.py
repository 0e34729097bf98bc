"""Do maps show what answers rest on? Tokens are taken away, or kept, in the order of the map and in random orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from meq.analysis.answers import Estimate, estimate
from meq.analysis.attribution import attribute
from meq.analysis.subject import Subject, held_still
from meq.core.options import checked_options

LEVELS = (0.1, 0.3, 0.6)
"""Shares of the tokens that are taken away or kept."""
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
            answer = _Answer.of(model, features, masks)
            for name, values in maps.maps.items():
                if name in features and features[name].ndim == 3:
                    found = _compared(answer, name, values[0], generator)
                    rows.setdefault(name, []).append(found[~maps.lost[0].cpu() & answer.kept(name)])
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
class _Answer:
    """A batch before the model, and how sure the model stays of its answer when tokens go."""

    model: Any
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    logits: Tensor

    @classmethod
    def of(cls, model: Any, features: dict[str, Tensor], masks: dict[str, Tensor]) -> _Answer:
        return cls(model, features, masks, model(features, masks).logits)

    def real(self, name: str) -> Bool[Tensor, "B N"]:
        x, mask = self.features[name], self.masks.get(name)
        whole = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return whole if mask is None else whole & mask.reshape(len(x), -1)

    def kept(self, name: str) -> Bool[Tensor, " B"]:
        """Samples with an order to test, whose answer is a number."""
        return ((self.real(name).sum(1) > 1) & torch.isfinite(self.logits).all(1)).cpu()

    def sureness(self, name: str, mask: Bool[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """What the answer to the whole sample gets with these tokens alone of one modality."""
        logits = self.model(self.features, {**self.masks, name: mask}).logits
        return sureness(logits, self.logits, self.model.head_kind)


def sureness(logits: Tensor, whole: Tensor, head: str) -> Float[Tensor, " B"]:
    """The probability of the answer that `whole` gives; for a number minus the distance to it."""
    if head == "score":
        return -(logits - whole)[:, 0].abs().double().cpu()
    chances = logits.sigmoid() if head == "labels" else logits.softmax(1)
    return chances.gather(1, whole.argmax(1, keepdim=True))[:, 0].double().cpu()


def _compared(
    answer: _Answer, name: str, values: Float[Tensor, "B N"], generator: torch.Generator
) -> Float[Tensor, "B 2"]:
    """Deletion and insertion of the map, each above the mean of random orders."""
    # tokens of one value are put in a random order: a map that is constant must not gain by where its tokens lie
    jitter = torch.rand(values.shape, generator=generator).to(values.device)
    by_map = _ranks(values, jitter, answer.real(name))
    drawn = [torch.rand(values.shape, generator=generator).to(values.device) for _ in range(ORDERS)]
    by_chance = [_ranks(torch.zeros_like(values), each, answer.real(name)) for each in drawn]
    random = torch.stack([_curves(answer, name, ranks) for ranks in by_chance]).mean(0)
    return (_curves(answer, name, by_map) - random) * torch.tensor([-1.0, 1.0], dtype=torch.float64)


def _ranks(values: Tensor, jitter: Tensor, real: Bool[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """Each real token's place in its order as a share, 0 for the largest value; padding comes after all."""
    order = jitter.argsort(1, descending=True)
    sorted_values = values.masked_fill(~real, -torch.inf).gather(1, order)
    order = order.gather(1, sorted_values.argsort(dim=1, descending=True, stable=True))
    places = torch.arange(values.shape[1], device=values.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)
    return ranks / real.sum(1, keepdim=True).clamp(min=1)


def _curves(answer: _Answer, name: str, ranks: Float[Tensor, "B N"]) -> Float[Tensor, "B 2"]:
    """The mean sureness without the first tokens, and with the first tokens alone."""
    real = answer.real(name)
    without = [answer.sureness(name, real & (ranks >= level)) for level in LEVELS]
    alone = [answer.sureness(name, real & (ranks < level)) for level in LEVELS]
    return torch.stack([torch.stack(without).mean(0), torch.stack(alone).mean(0)], dim=1)
