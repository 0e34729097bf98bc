"""How strongly the modalities are coupled at the kept weights: gates, blocks of the Jacobian, residual."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from meq.analysis.jacobian import block_statistics, cross_self_ratio, whole_statistic
from meq.core.options import checked_options
from meq.experiments.build import Prepared
from meq.experiments.measures.contract import Found, Measure, Trained, Values, check_split
from meq.experiments.measures.summary import SPREADS, arms_in, by_seed, names_in, over_seeds
from meq.experiments.render import Cell, Column, Table
from meq.experiments.study import Study
from meq.objectives.floors import ARROW


@checked_options
@dataclass(frozen=True, kw_only=True)
class Coupling(Measure):
    """Means over held-out samples, dropout off: gate, s_ab, cross/self ratio, |J|, residual, steps."""

    name: ClassVar[str] = "coupling"

    samples: int = 128
    split: str = "dev"

    def check(self, study: Study, prepared: Prepared) -> None:
        check_split(prepared.data, self.split)

    def take(self, trained: Trained) -> Found | None:
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
        return {"split": self.split, "samples": seen, **means}

    def tables(self, study: Study, values: Values) -> dict[str, Table]:
        arms = arms_in(study, values)
        if not arms:
            return {}
        parts = [("gate", "gate", 4), ("cross_self", "cross/self", 4), ("residual", "residual", 5), ("whole", "", 4)]
        found = [(part, name, title, digits) for part, title, digits in parts for name in names_in(study, values, part)]
        titles = {"jacobian_norm": "|J|", "steps": "steps"}
        columns = [Column(key="arm", title="arm")]
        for part, name, title, digits in found:
            words = f"{title}, {name}" if title else titles[name]
            columns += [
                Column(key=f"{part} {name}", title=words, digits=digits),
                Column(key=f"{part} {name} spread", title="spread", digits=digits),
            ]
        rows: list[tuple[Cell, ...]] = []
        for arm in arms:
            cells: list[Cell] = [arm]
            for part, name, _, _ in found:
                cells += over_seeds(by_seed(study, values, arm), part, name)
            rows.append(tuple(cells))
        first = next(iter(values.values()))
        note = (
            f"Means over {first['samples']} samples of {first['split']} at the kept weights, dropout off. Cross/self: "
            "how much a path's update depends on the other modalities, over how much on itself."
        )
        return {
            "coupling": Table(
                title=f"{study.name}: coupling at the kept weights",
                columns=tuple(columns),
                rows=tuple(rows),
                notes=(note, SPREADS),
            )
        }
