"""Penalties on the map at the state that was read: a weight, a name, and a number per sample.

A penalty of your own is a dataclass below `@register_penalty("name")`; it needs no other line anywhere.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from meq.core.state import dots, norm
from meq.objectives.probe import Evaluation
from meq.options import checked_options, nearest
from meq.registry import Registry

ARROW = "<-"
"""A pair of modalities is written "image<-text": what the text's state does to the image's update."""


@dataclass(frozen=True, eq=False)
class PenaltyValues:
    """One penalty on one evaluation, for the R samples that take part in it."""

    per_sample: Float[Tensor, " R"]
    statistics: dict[str, Float[Tensor, " R"]] = field(default_factory=dict)


class Penalty(ABC):
    """A term of the objective. With weight 0 it is not computed at all."""

    name: ClassVar[str]
    """Its key in `Loss.terms`; the name it is registered by unless the class says otherwise."""
    weight: float

    @abstractmethod
    def measure(self, evaluation: Evaluation) -> PenaltyValues:
        """The unweighted penalty of each sample, and what was seen on the way."""

    @property
    def split_probes(self) -> int:
        """How many probes it needs modality by modality."""
        return 0

    def _check(self, probes: int = 1) -> None:
        label = type(self).__name__
        if isinstance(probes, bool) or not isinstance(probes, int) or probes < 1:
            raise ValueError(f"{label}(probes) must be a whole number of at least 1, got {probes!r}")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"{label}(weight) must be 0 (off) or a positive number, got {self.weight!r}")


AnyPenalty = TypeVar("AnyPenalty", bound=type[Penalty])
PENALTIES: Registry[type[Penalty]] = Registry("penalty")
"""By name; the options of a penalty are the fields of its dataclass."""


def register_penalty(name: str) -> Callable[[AnyPenalty], AnyPenalty]:
    """Let objectives name this penalty; the class is a dataclass of plain options."""

    def register(cls: AnyPenalty) -> AnyPenalty:
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"the penalty {cls.__name__} must be a dataclass, so that its options are known")
        if "name" not in vars(cls):
            cls.name = name
        return PENALTIES.register(name)(cls)

    return register


@register_penalty("jacobian-range")
@checked_options
@dataclass(frozen=True, kw_only=True)
class JacobianRange(Penalty):
    """max(0, |J| - high)^2 + max(0, low - |J|)^2 per sample.

    |J| = sqrt(mean over probes of |v^T J|^2 / n), with J of the undamped map at the read state and n its real entries:
    an estimate of the root mean square singular value, exactly 1 for the identity. It is not the spectral radius.

    >>> objective = meq.Objective(penalties=[meq.JacobianRange(weight=0.5)])
    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> objective(model, out, torch.tensor([0, 2])).total.shape  # one number
    torch.Size([])
    """

    name: ClassVar[str] = "jacobian"

    low: float | None = 0.7
    """None: no lower bound."""
    high: float | None = 0.9
    """None: no upper bound. Without either, |J| is measured and nothing is held."""
    probes: int = 1
    """Random sign vectors per sample; |J|^2 is unbiased for any number of them."""
    weight: float = 0.5

    def __post_init__(self) -> None:
        self._check(self.probes)
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        if not all(0 <= bound < torch.inf for bound in bounds) or (len(bounds) == 2 and bounds[0] >= bounds[1]):
            raise ValueError(f"JacobianRange needs 0 <= low < high, got low={self.low!r}, high={self.high!r}")

    def measure(self, evaluation: Evaluation) -> PenaltyValues:
        size = jacobian_norm(evaluation, self.probes)
        penalty = torch.zeros_like(size)
        if self.high is not None:
            penalty = penalty + (size - self.high).clamp(min=0).square()
        if self.low is not None:
            penalty = penalty + (self.low - size).clamp(min=0).square()
        return PenaltyValues(penalty, {"jacobian_norm": size})


def jacobian_norm(evaluation: Evaluation, probes: int) -> Float[Tensor, " R"]:
    """sqrt(mean over probes of |v^T J|^2 / n)"""
    entries = torch.stack([evaluation.entries(name) for name in evaluation.state]).sum(0)
    products = [evaluation.product(probe) for probe in range(probes)]
    # a sum of squares, not a norm squared: rounding would make the identity's 1 only nearly 1
    squares = torch.stack([dots([x], x, evaluation.masks)[:, 0] for x in products]).mean(0)
    return root(squares / entries.clamp(min=1))


@register_penalty("residual-correction")
@checked_options
@dataclass(frozen=True, kw_only=True)
class ResidualCorrection(Penalty):
    """1/2 sum_m |r_m| / |z_m| per sample, r = z - T(z) of the undamped map at the read state.

    Modalities that a sample lacks are left out, and so are those at z = 0, where the ratio has no gradient. The
    identity makes this term zero as well: see `CrossFloor`.

    >>> objective = meq.Objective(penalties=[meq.ResidualCorrection(weight=0.3)])
    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> objective(model, out, torch.tensor([0, 2])).total.shape  # one number
    torch.Size([])
    """

    name: ClassVar[str] = "residual"

    weight: float = 0.3

    def __post_init__(self) -> None:
        self._check()

    def measure(self, evaluation: Evaluation) -> PenaltyValues:
        ratios = []
        for name, size in evaluation.size.items():
            somewhere = size > 0  # false for absent modalities, too
            ratios.append(torch.where(somewhere, evaluation.gap[name] / torch.where(somewhere, size, 1), 0))
        return PenaltyValues(torch.stack(ratios).sum(0) / 2)


@register_penalty("cross-floor")
@checked_options
@dataclass(frozen=True)
class CrossFloor(Penalty):
    """sum over ordered pairs of max(0, floor_ab - s_ab) per sample, s_ab = |J_ab|_F / sqrt(n_a).

    J_ab = dT_a/dz_b is what b's state has to say in a's update, and n_a counts the real entries of a; s_ab is estimated
    by |v_a^T J_ab|, v_a random signs on a. A sample that lacks a or b is left out of the pair.

    >>> objective = meq.Objective(penalties=[meq.CrossFloor(0.05, weight=1.0)])
    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> objective(model, out, torch.tensor([0, 2])).total.shape  # one number
    torch.Size([])
    """

    name: ClassVar[str] = "cross_floor"

    floors: float | Mapping[str, float]
    """One floor for every pair, or floors by pair: {"image<-text": 0.05} holds the text's say in the image."""
    _: KW_ONLY
    weight: float = 1.0
    probes: int = 1

    def __post_init__(self) -> None:
        self._check(self.probes)
        floors = self.floors.values() if isinstance(self.floors, Mapping) else [self.floors]
        if not all(0 <= floor < torch.inf for floor in floors):
            raise ValueError(f"CrossFloor needs floors of at least 0, got {self.floors!r}")
        for pair in self.floors if isinstance(self.floors, Mapping) else ():
            if pair.count(ARROW) != 1:
                raise ValueError(f"CrossFloor has the pair {pair!r}: a pair is written like 'image{ARROW}text'")

    @property
    def split_probes(self) -> int:
        return self.probes

    def measure(self, evaluation: Evaluation) -> PenaltyValues:
        floors = self._floors(evaluation.state)
        sizes = block_sizes(evaluation, self.probes)
        hinges = [(floor - sizes[pair]).clamp(min=0) for pair, floor in floors.items()]
        present = {name: evaluation.entries(name) > 0 for name in evaluation.state}
        taking_part = [torch.stack([present[name] for name in pair.split(ARROW)]).all(0) for pair in floors]
        penalty = [torch.where(both, hinge, 0) for both, hinge in zip(taking_part, hinges, strict=True)]
        return PenaltyValues(torch.stack(penalty).sum(0), _statistics(sizes, present))

    def _floors(self, names: Iterable[str]) -> dict[str, float]:
        """The floor of each pair that has one."""
        names = list(names)
        pairs = [f"{a}{ARROW}{b}" for a in names for b in names if a != b]
        if not pairs:
            raise ValueError(f"CrossFloor needs at least two coupled states, and this model has only {names}")
        if not isinstance(self.floors, Mapping):
            return dict.fromkeys(pairs, self.floors)
        for pair in self.floors:
            if pair not in pairs:
                raise ValueError(f"CrossFloor has the unknown pair {pair!r}: {nearest(pair, pairs)}")
        if not self.floors:
            raise ValueError("CrossFloor has no floors: give at least one pair, or a single number for all of them")
        return dict(self.floors)


def block_sizes(evaluation: Evaluation, probes: int) -> dict[str, Float[Tensor, " R"]]:
    """s_ab by "a<-b", diagonal blocks included."""
    blocks = [evaluation.blocks(probe) for probe in range(probes)]
    sizes = {}
    for a in evaluation.state:
        entries = evaluation.entries(a).clamp(min=1)
        for b in evaluation.state:
            squares = [norm(rows[a][b], evaluation.masks.get(b)).square() for rows in blocks]
            sizes[f"{a}{ARROW}{b}"] = root(torch.stack(squares).mean(0) / entries)
    return sizes


def _statistics(sizes: dict[str, Tensor], present: dict[str, Tensor]) -> dict[str, Tensor]:
    """ "cross/a<-b" and "self/a", NaN where a sample lacks a or b."""
    statistics = {}
    for pair, size in sizes.items():
        a, b = pair.split(ARROW)
        key = f"self/{a}" if a == b else f"cross/{pair}"
        statistics[key] = torch.where(present[a] & present[b], size, torch.nan)
    return statistics


def root(x: Tensor) -> Tensor:
    """sqrt(x) with gradient 0 at 0, where the true one is infinite and would turn every other into NaN."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1).sqrt(), 0)
