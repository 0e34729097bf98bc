"""Conditions under which the equilibrium exists and the iteration finds it, with margins and what each implies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.jacobian import Blocks, measure_blocks
from meq.analysis.spectrum import leading_eigenvalue
from meq.analysis.tables import spread, text_table
from meq.core.options import checked_options
from meq.core.solution import Solution

IMPLIES = {
    "rho(J) < 1": "I - J is invertible, and the undamped iteration settles from close by",
    "|J| < 1": "T contracts near this state: rho(J) < 1 as well, and every step comes closer",
    "blocks": "rho(J) < 1 again, seen from the norms of the blocks alone",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Conditions:
    """Three sufficient conditions, per sample: each value is to be below 1, and 1 - value is its margin.

    The block condition is the comparison matrix's rho(C) < 1, C_ab = |J_ab| / (1 - |J_aa|) off the diagonal. It
    applies where every |J_aa| < 1 in norm; a spectral radius below 1 would not be enough. For two modalities rho(C)^2
    is the paper's |G_x| |F_y| / ((1 - |G_y|) (1 - |F_x|)). It and |J| < 1 each imply rho(J) < 1, and neither implies
    the other: rho(C) < 1 exactly where the matrix of the |J_ab| has a radius below 1, which bounds rho(J).
    """

    radius: Float[Tensor, " B"]
    norm: Float[Tensor, " B"]
    """|J|, the operator norm."""
    blocks: Float[Tensor, " B"]
    """rho(C); NaN where the condition does not apply."""
    norms: Blocks
    """The |J_ab| that it was made from."""

    @property
    def invertible(self) -> list[str]:
        """Per sample, what shows that I - J is invertible; "nothing" where no condition holds."""
        named = {"rho(J) < 1": self.radius, "|J| < 1": self.norm, "blocks": self.blocks}
        shown = [[name for name, values in named.items() if float(values[row]) < 1] for row in range(len(self.radius))]
        return [" and ".join(names) or "nothing" for names in shown]

    def __str__(self) -> str:
        lines = []
        for name, values in (("rho(J) < 1", self.radius), ("|J| < 1", self.norm), ("blocks", self.blocks)):
            applies = values[~values.isnan()]
            holds = f"{int((applies < 1).sum())} of {len(values)}"
            if name == "blocks" and len(applies) < len(values):
                holds += f", does not apply to {len(values) - len(applies)}"
            lines.append([name, spread(values), spread(1 - values), holds])
        meanings = [f"  {name}: {words}" for name, words in IMPLIES.items()]
        return "\n".join(
            [text_table(["condition", "value", "margin", "holds for"], lines), "where it holds,", *meanings]
        )


@checked_options
def check_conditions(operator: Any, solution: Solution, *, exact: bool = False, tol: float = 1e-3) -> Conditions:
    """Measure every condition at the read state of every sample; `exact` forms the Jacobian."""
    spectrum = leading_eigenvalue(operator, solution, tol=tol, exact=exact)
    norms = measure_blocks(operator, solution, probes=1, exact=exact, tol=tol).spectral
    rows = range(len(solution.steps))
    blocks = [
        comparison_radius({a: {b: float(x[row]) for b, x in r.items()} for a, r in norms.items()}) for row in rows
    ]
    return Conditions(
        radius=spectrum.radius,
        norm=spectrum.operator_norm,
        blocks=torch.tensor(blocks, dtype=torch.float64),
        norms=norms,
    )


def comparison_radius(norms: dict[str, dict[str, float]]) -> float:
    """rho(C) from |J_ab| of one sample; NaN where some |J_aa| is not below 1. Absent modalities are left out."""
    present = [name for name in norms if not math.isnan(norms[name][name])]
    if not present or any(norms[name][name] >= 1 for name in present):
        return math.nan
    comparison = np.array([[0.0 if a == b else norms[a][b] / (1 - norms[a][a]) for b in present] for a in present])
    return float(np.abs(np.linalg.eigvals(comparison)).max())
