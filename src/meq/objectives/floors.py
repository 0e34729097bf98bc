"""CrossFloor: the modalities are kept from ignoring each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from meq.core.options import checked_options, nearest
from meq.core.state import norm
from meq.objectives.evaluation import Evaluation
from meq.objectives.penalty import Measured, Penalty, check_probes, check_weight, root

ARROW = "<-"


@checked_options
@dataclass(frozen=True)
class CrossFloor(Penalty):
    """sum over ordered pairs of max(0, floor_ab - s_ab) per sample, s_ab = |J_ab|_F / sqrt(n_a).

    J_ab = dT_a/dz_b is what b's state has to say in a's update, and n_a counts the real entries of a; s_ab is estimated
    by |v_a^T J_ab|, v_a random signs on a. A sample that lacks a or b is left out of the pair.
    """

    name: ClassVar[str] = "cross_floor"

    floors: float | Mapping[str, float]
    """One floor for every pair, or floors by pair: {"image<-text": 0.05} holds the text's say in the image."""
    _: KW_ONLY
    weight: float = 1.0
    probes: int = 1

    def __post_init__(self) -> None:
        check_probes(self.probes, "CrossFloor")
        check_weight(self.weight, "CrossFloor")
        floors = self.floors.values() if isinstance(self.floors, Mapping) else [self.floors]
        if not all(0 <= floor < torch.inf for floor in floors):
            raise ValueError(f"CrossFloor needs floors of at least 0, got {self.floors!r}")
        for pair in self.floors if isinstance(self.floors, Mapping) else ():
            if pair.count(ARROW) != 1:
                raise ValueError(f"CrossFloor has the pair {pair!r}: a pair is written like 'image{ARROW}text'")

    @property
    def split_probes(self) -> int:
        return self.probes

    def measure(self, evaluation: Evaluation) -> Measured:
        floors = self._floors(evaluation.state)
        sizes = block_sizes(evaluation, self.probes)
        hinges = [(floor - sizes[pair]).clamp(min=0) for pair, floor in floors.items()]
        present = {name: evaluation.entries(name) > 0 for name in evaluation.state}
        taking_part = [torch.stack([present[name] for name in pair.split(ARROW)]).all(0) for pair in floors]
        penalty = [torch.where(both, hinge, 0) for both, hinge in zip(taking_part, hinges, strict=True)]
        return Measured(torch.stack(penalty).sum(0), _statistics(sizes, present))

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
