"""Influence: what the equilibrium makes of a push, through every path between the modalities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from meq.analysis.jacobian import Blocks, mean_size, pull_probes, random_signs, sizes_by_block, unit_vectors
from meq.analysis.products import Inverse, Matrix, jacobians, placed, pull_inverse, reachable_tolerance
from meq.analysis.spectrum import leading_eigenvalue
from meq.analysis.tables import column, join_samples, middle, number, spread, square_table, text_table
from meq.core.solution import Solution
from meq.options import checked_options

SOLVED = 0.1
"""A linear solve that leaves more than this of its right hand side has found nothing."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Influence:
    """Sizes |A|_F / sqrt(n_a), per sample, of the blocks of (I - J)^-1 and of what they are made of."""

    total: Blocks
    """total[a][b] is the size of [(I - J)^-1]_ab: how far a push on b's update moves a's equilibrium. On the diagonal
    stands the paper's total influence (I - J_aa - J_aR (I - J_RR)^-1 J_Ra)^-1; it is 1 where nothing reads a."""
    own: dict[str, Float[Tensor, " B"]]
    """The size of J_aa, the part that a processes by itself."""
    cross: dict[str, Float[Tensor, " B"]]
    """The size of J_aR (I - J_RR)^-1 J_Ra: sent to the others, looped there, and sent back."""
    partial: dict[int, Blocks]
    """The size of the Neumann sum I + J + ... + J^k: what the first k exchanges carry."""
    left_out: dict[int, Float[Tensor, " B"]]
    """|(I - J)^-1 - sum_k| / |(I - J)^-1|: what comes after k exchanges. It grows without bound where rho >= 1."""
    radius: Float[Tensor, " B"]
    residual: Float[Tensor, " B"]
    """The largest relative residual of the linear solves."""
    products: int

    def __str__(self) -> str:
        rows = [[name, number(middle(self.own[name])), number(middle(self.cross[name]))] for name in self.own]
        terms = [[str(k), spread(values)] for k, values in self.left_out.items()]
        diverging, worst = int((self.radius >= 1).sum()), float(self.residual.max())
        if worst > SOLVED:
            closing = "I - J is singular, or nearly: the numbers above are no influence"
        elif diverging:
            closing = (
                f"the Neumann sums diverge for {diverging} of {len(self.radius)} samples, whose spectral radius is at "
                "least 1: there the influence is that of the equilibrium, not of the iteration"
            )
        else:
            closing = f"the Neumann sums converge: spectral radius {spread(self.radius)}"
        return "\n".join(
            [
                square_table("equilibrium of / pushed by", self.total),
                text_table(["influence of", "own", "through the others"], rows),
                text_table(["exchanges", "left out"], terms),
                f"{closing}; solves left a residual of {number(worst)} at most; {self.products} products",
            ]
        )


@checked_options
def measure_influence(
    operator: Any,
    solution: Solution,
    *,
    exchanges: tuple[int, ...] = (1, 2, 4, 8, 16),
    probes: int = 4,
    seed: int = 0,
    exact: bool = False,
    tol: float | None = None,
) -> Influence:
    """Total influence, its parts and its Neumann sums; Frobenius norms by Hutchinson, inverses by GMRES.

    `exact` forms J and probes it with every unit vector instead of random signs. `tol` is GMRES's, as precise as the
    dtype allows unless given.
    """
    if not exchanges or min(exchanges) < 0 or probes < 1:
        raise ValueError(f"exchanges must be numbers of at least 0 and probes at least 1, got {exchanges}, {probes}")
    tol = reachable_tolerance(solution.state) if tol is None else tol
    spectrum = leading_eigenvalue(operator, solution, norms=False, exact=exact)
    found: Influence = join_samples(
        [
            _influence(matrix.formed(exact=exact), radius[None], sorted(set(exchanges)), probes, seed, tol, exact=exact)
            for matrix, radius in zip(jacobians(operator, solution), spectrum.radius, strict=True)
        ]
    )
    return replace(found, products=found.products + int(spectrum.products.sum()))


@dataclass(frozen=True, eq=False)
class SolvedProbes:
    """v_a^T (I - J)^-1 of one sample for random signs v_a of every modality, and the residual of the solves."""

    pulled: dict[str, list[np.ndarray]]
    residual: float


def solve_probes(matrices: Sequence[Matrix], *, probes: int, seed: int, tol: float) -> list[SolvedProbes]:
    """By the factors of Jacobians that are stored, and otherwise in one go for all samples and all their probes."""
    drawn = [random_signs(matrix.rows, probes, np.random.default_rng(seed)) for matrix in matrices]
    if any(matrix.stored is not None or matrix.among is None for matrix in matrices):
        found = []
        for matrix, signs in zip(matrices, drawn, strict=True):
            inverse = Inverse(matrix, tol=tol)
            found.append(SolvedProbes(pull_probes(inverse, matrix.rows, signs), inverse.residual))
        return found
    wanted = [
        (row, a, placed(v, matrix.rows.own(a), matrix.rows.size))
        for row, (matrix, signs) in enumerate(zip(matrices, drawn, strict=True))
        for a, vectors in signs.items()
        for v in vectors
    ]
    answers, residuals = pull_inverse(matrices, [(row, b) for row, _, b in wanted], tol=tol)
    pulled: list[dict[str, list[np.ndarray]]] = [{a: [] for a in signs} for signs in drawn]
    worst = [0.0] * len(matrices)
    for (row, a, _), x, residual in zip(wanted, answers, residuals, strict=True):
        pulled[row][a].append(x)
        worst[row] = max(worst[row], residual)
    return [SolvedProbes(*each) for each in zip(pulled, worst, strict=True)]


def total_influence(matrices: Sequence[Matrix], solved: Sequence[SolvedProbes]) -> Blocks:
    """The `total` of `Influence` alone."""
    pairs = zip(matrices, solved, strict=True)
    return join_samples([sizes_by_block(each.pulled, matrix.rows, matrix.rows) for matrix, each in pairs])


def _influence(
    matrix: Matrix, radius: Tensor, exchanges: list[int], probes: int, seed: int, tol: float, *, exact: bool
) -> Influence:
    """The influence in one sample, from products v_a^T A with probes v_a: random signs, or all unit vectors."""
    entries, inverse = matrix.rows, Inverse(matrix, tol=tol)
    signs = unit_vectors(entries) if exact else random_signs(entries, probes, np.random.default_rng(seed))
    whole = pull_probes(inverse, entries, signs)
    own, cross, worst = {}, {}, inverse.residual
    for name, rows in signs.items():
        mine, rest = entries.own(name), entries.others(name)
        inner = Inverse(matrix, within=rest, tol=tol)
        round_trip = matrix.block(mine, rest).after(inner).after(matrix.block(rest, mine))
        own[name] = column([mean_size([matrix.block(mine, mine).pull(v) for v in rows], len(mine))])
        cross[name] = column([mean_size([round_trip.pull(v) for v in rows], len(mine))])
        worst = max(worst, inner.residual)
    sums = _neumann_sums(matrix, signs, exchanges)
    return Influence(
        total=sizes_by_block(whole, entries, entries),
        own=own,
        cross=cross,
        partial={k: sizes_by_block(carried, entries, entries) for k, carried in sums.items()},
        left_out={k: column([_left_out(whole, carried)]) for k, carried in sums.items()},
        radius=radius,
        residual=column([worst]),
        products=matrix.products,
    )


def _neumann_sums(
    matrix: Matrix, probes: dict[str, np.ndarray], exchanges: list[int]
) -> dict[int, dict[str, list[np.ndarray]]]:
    """v_a^T (I + J + ... + J^k) for the asked k, by k and a."""
    sums: dict[int, dict[str, list[np.ndarray]]] = {k: {a: [] for a in probes} for k in exchanges}
    for a, rows in probes.items():
        for v in rows:
            power = total = placed(v, matrix.rows.own(a), matrix.rows.size)
            for k in range(exchanges[-1] + 1):
                if k:
                    power = matrix.pull(power)
                    total = total + power
                if k in sums:
                    sums[k][a].append(total)
    return sums


def _left_out(whole: dict[str, list[np.ndarray]], carried: dict[str, list[np.ndarray]]) -> float:
    """|(I - J)^-1 - sum| / |(I - J)^-1|, from the products of both with the probes."""
    gap = size = 0.0
    for a, rows in whole.items():
        for w, s in zip(rows, carried[a], strict=True):
            gap += float(np.square(w - s).sum()) / len(rows)
            size += float(np.square(w).sum()) / len(rows)
    return (gap / size) ** 0.5 if size else math.nan
