"""How strongly the modalities are coupled at the kept weights: gates, blocks of the Jacobian, residual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from meq.analysis.jacobian import block_statistics, cross_self_ratio, whole_statistic
from meq.objectives.penalties import ARROW
from meq.options import checked_options
from meq.records import SINCE
from meq.studies.measures.contract import (
    SPREADS,
    Measure,
    Results,
    SeedRow,
    TrainedModel,
    by_arm,
    names_in,
    spread_titles,
)
from meq.studies.study import Study
from meq.tables import Table


@dataclass(frozen=True, kw_only=True)
class CouplingResult:
    """Means over samples, by modality; of blocks by pair of modalities. What a model does not have is left out."""

    split: str
    samples: int
    gate: Mapping[str, float] = field(default_factory=dict, metadata=SINCE)
    blocks: Mapping[str, float]
    cross_self: Mapping[str, float] = field(default_factory=dict, metadata=SINCE)
    """Nothing for a sum of features, which is one state of all modalities."""
    residual: Mapping[str, float]
    whole: Mapping[str, float]
    """jacobian_norm and steps."""


@checked_options
@dataclass(frozen=True, kw_only=True)
class Coupling(Measure[CouplingResult]):
    """Means over held-out samples, dropout off: gate, s_ab, cross/self ratio, |J|, residual, steps."""

    name: ClassVar[str] = "coupling"
    result: ClassVar[type] = CouplingResult

    samples: int = 128
    split: str = "dev"

    def take(self, trained: TrainedModel) -> CouplingResult | None:
        if trained.iterated is None:
            return None
        seen = 0
        sums: dict[str, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
        for batch in trained.batches(self.split, limit=self.samples):
            with torch.no_grad():
                solution = trained.model(batch.features, batch.masks).solution
            assert solution is not None
            seen += len(batch)
            blocks = block_statistics(solution.operator, solution)
            parts = {
                "gate": trained.model.gates(solution),
                "blocks": {f"{a}{ARROW}{b}": x for a, row in blocks.items() for b, x in row.items()},
                "cross_self": cross_self_ratio(blocks),
                "residual": solution.final_residual,
                "whole": {"jacobian_norm": whole_statistic(blocks, solution), "steps": solution.steps},
            }
            for part, found in parts.items():
                for name, values in found.items():
                    sums[part][name].append(values.float())
        means = {
            part: {name: float(torch.cat(x).nanmean()) for name, x in found.items()} for part, found in sums.items()
        }
        return CouplingResult(split=self.split, samples=seen, **means)

    def tables(self, study: Study, results: Results[CouplingResult]) -> dict[str, Table]:
        if not results:
            return {}
        arms = by_arm(study, results)
        words = {"gate": "gate", "cross_self": "cross/self", "residual": "residual", "whole": ""}
        every = [each for found in arms.values() for each in found]
        shown = [(part, name) for part in words for name in names_in(getattr(each, part) for each in every)]
        rows = []
        for arm, found in arms.items():
            row = SeedRow(arm=arm)
            for part, name in shown:
                row.add(f"{part} {name}", (getattr(each, part).get(name) for each in found))
            rows.append(row)
        titles = {f"{part} {name}": f"{words[part]}, {name}" for part, name in shown}
        titles |= {"whole jacobian_norm": "|J|", "whole steps": "steps", **spread_titles(rows)}
        first = next(iter(results.values()))
        notes = (
            f"Means over {first.samples} samples of {first.split} at the kept weights, dropout off. Cross/self: "
            "how much a path's update depends on the other modalities, over how much on itself.",
            SPREADS,
        )
        digits = {key: 5 for row in rows for key in row if key.startswith("residual ")}
        title = f"{study.name}: coupling at the kept weights"
        return {"coupling": Table.of(title, rows, titles=titles, digits=digits, notes=notes)}
