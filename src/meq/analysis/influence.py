"""Influence: what the equilibrium makes of a push, through every path between the modalities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.differential import one_sample
from meq.analysis.jacobian import Blocks, mean_size
from meq.analysis.linear import Inverse, Matrix, block_products, placed, reachable_tolerance
from meq.analysis.spectrum import leading_eigenvalue
from meq.analysis.tables import middle, number, spread, square_table, stacked, text_table
from meq.core.options import checked_options
from meq.core.solution import Solution

SOLVED = 0.1
"""A linear solve that leaves more than this of its right hand side has found nothing."""
Sums = dict[int, dict[str, dict[str, float]]]


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
        parts = [square_table("equilibrium of / pushed by", self.total)]
        rows = [[name, number(middle(self.own[name])), number(middle(self.cross[name]))] for name in self.own]
        parts.append(text_table(["influence of", "own", "through the others"], rows))
        terms = [[str(k), spread(values)] for k, values in self.left_out.items()]
        parts.append(text_table(["exchanges", "left out"], terms))
        parts.append(self._verdict())
        return "\n".join(parts)

    def _verdict(self) -> str:
        diverging = int((self.radius >= 1).sum())
        solved = f"solves left a residual of {number(float(self.residual.max()))} at most; {self.products} products"
        if float(self.residual.max()) > SOLVED:
            return f"I - J is singular, or nearly: the numbers above are no influence; {solved}"
        if diverging:
            return (
                f"the Neumann sums diverge for {diverging} of {len(self.radius)} samples, whose spectral radius is at "
                f"least 1: there the influence is that of the equilibrium, not of the iteration; {solved}"
            )
        return f"the Neumann sums converge: spectral radius {spread(self.radius)}; {solved}"


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

    `exact` forms the matrices. `tol` is GMRES's, as precise as the dtype allows unless given.
    """
    if not exchanges or min(exchanges) < 0 or probes < 1:
        raise ValueError(f"exchanges must be numbers of at least 0 and probes at least 1, got {exchanges}, {probes}")
    tol = reachable_tolerance(solution.state) if tol is None else tol
    samples = [one_sample(solution, row) for row in range(len(solution.steps))]
    found = []
    for sample in samples:
        matrix = Matrix.of(operator, sample).formed_if_small()
        ask = _Probing(matrix, probes, seed, tol) if not exact else _Dense(matrix)
        found.append((ask, ask.total(), ask.parts(), ask.sums(sorted(set(exchanges)))))
    spectrum = leading_eigenvalue(operator, solution, norms=False, exact=exact)
    return Influence(
        total=stacked([total for _, total, *_ in found]),
        own={name: _column([own[name] for *_, (own, _), _ in found]) for name in solution.state},
        cross={name: _column([cross[name] for *_, (_, cross), _ in found]) for name in solution.state},
        partial={k: stacked([sums[k] for *_, (sums, _) in found]) for k in sorted(set(exchanges))},
        left_out={k: _column([left[k] for *_, (_, left) in found]) for k in sorted(set(exchanges))},
        radius=spectrum.radius,
        residual=_column([ask.worst for ask, *_ in found]),
        products=sum(ask.matrix.products for ask, *_ in found) + int(spectrum.products.sum()),
    )


def total_influence(
    matrices: Sequence[Matrix], *, probes: int, seed: int, tol: float
) -> tuple[Blocks, Float[Tensor, " B"]]:
    """The `total` of `Influence` alone, of Jacobians that are at hand, and the residual of its solves."""
    asked = [_Probing(matrix, probes, seed, tol) for matrix in matrices]
    return stacked([ask.total() for ask in asked]), _column([ask.worst for ask in asked])


class _Dense:
    """The exact answers, from the matrix itself."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix, self.entries, self.worst = matrix, matrix.rows, 0.0
        self.dense = matrix.dense()
        self.inverse = self._invert(self.dense)

    def _invert(self, matrix: np.ndarray) -> np.ndarray:
        """(I - A)^-1; NaN where there is none."""
        try:
            return np.linalg.inv(np.eye(len(matrix)) - matrix)
        except np.linalg.LinAlgError:
            self.worst = math.inf
            return np.full_like(matrix, np.nan)

    def total(self) -> dict[str, dict[str, float]]:
        return self._sizes(self.inverse)

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        own, cross = {}, {}
        for name in self.entries.places:
            mine, rest = self.entries.own(name), self.entries.others(name)
            inner = self._invert(self.dense[np.ix_(rest, rest)])
            back = self.dense[np.ix_(mine, rest)] @ inner @ self.dense[np.ix_(rest, mine)]
            own[name], cross[name] = _size(self.dense[np.ix_(mine, mine)]), _size(back)
        return own, cross

    def sums(self, exchanges: list[int]) -> tuple[Sums, dict[int, float]]:
        sums, left = {}, {}
        power = total = np.eye(len(self.dense))
        for k in range(exchanges[-1] + 1):
            if k:
                power = power @ self.dense
                total = total + power
            if k in exchanges:
                sums[k] = self._sizes(total)
                left[k] = float(np.linalg.norm(self.inverse - total) / np.linalg.norm(self.inverse))
        return sums, left

    def _sizes(self, whole: np.ndarray) -> dict[str, dict[str, float]]:
        places = self.entries.places
        return {a: {b: _size(whole[places[a], places[b]]) for b in places} for a in places}


class _Probing:
    """Estimates from random signs v_a: |v_a^T A_ab|^2 has the mean |A_ab|_F^2."""

    def __init__(self, matrix: Matrix, probes: int, seed: int, tol: float) -> None:
        self.matrix, self.entries, self.tol, self.worst = matrix, matrix.rows, tol, 0.0
        draw = np.random.default_rng(seed)
        self.signs = {a: draw.choice([-1.0, 1.0], (probes, self.entries.count(a))) for a in self.entries.places}
        self.inverse = Inverse(matrix, tol=tol)
        self.solved = {a: [self.inverse.pull(self._whole(a, v)) for v in rows] for a, rows in self.signs.items()}
        self.worst = self.inverse.residual

    def total(self) -> dict[str, dict[str, float]]:
        return {a: self._row(a, rows) for a, rows in self.solved.items()}

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        own, cross = {}, {}
        for name, rows in self.signs.items():
            mine, rest = self.entries.own(name), self.entries.others(name)
            _, own_pull = block_products(self.matrix, mine, mine)
            own[name] = mean_size([own_pull(v) for v in rows], len(mine))
            inner = Inverse(self.matrix, within=rest, tol=self.tol)
            cross[name] = mean_size([self._round_trip(v, mine, rest, inner) for v in rows], len(mine))
            self.worst = max(self.worst, inner.residual)
        return own, cross

    def sums(self, exchanges: list[int]) -> tuple[Sums, dict[int, float]]:
        carried: dict[int, dict[str, list[np.ndarray]]] = {k: {a: [] for a in self.signs} for k in exchanges}
        for a, rows in self.signs.items():
            for v in rows:
                for k, partial in self._partial_sums(self._whole(a, v), exchanges):
                    carried[k][a].append(partial)
        sums = {k: {a: self._row(a, rows) for a, rows in by_name.items()} for k, by_name in carried.items()}
        return sums, {k: self._missing(by_name) for k, by_name in carried.items()}

    def _missing(self, carried: dict[str, list[np.ndarray]]) -> float:
        pairs = [(w, s) for a, rows in self.solved.items() for w, s in zip(rows, carried[a], strict=True)]
        gap = sum(float(np.square(w - s).sum()) for w, s in pairs)
        whole = sum(float(np.square(w).sum()) for w, _ in pairs)
        return (gap / whole) ** 0.5 if whole else math.nan

    def _partial_sums(self, v: np.ndarray, exchanges: list[int]) -> list[tuple[int, np.ndarray]]:
        """v^T (I + J + ... + J^k) for the asked k."""
        power, total, kept = v, v.copy(), []
        for k in range(exchanges[-1] + 1):
            if k:
                power = self.matrix.pull(power)
                total = total + power
            if k in exchanges:
                kept.append((k, total))
        return kept

    def _round_trip(self, v: np.ndarray, mine: np.ndarray, rest: np.ndarray, inner: Inverse) -> np.ndarray:
        """v^T J_aR (I - J_RR)^-1 J_Ra"""
        _, to_rest = block_products(self.matrix, mine, rest)
        _, to_mine = block_products(self.matrix, rest, mine)
        return to_mine(inner.pull(to_rest(v)))

    def _whole(self, name: str, v: np.ndarray) -> np.ndarray:
        return placed(v, self.entries.own(name), self.entries.size)

    def _row(self, a: str, rows: list[np.ndarray]) -> dict[str, float]:
        places, count = self.entries.places, self.entries.count(a)
        return {b: mean_size([w[places[b]] for w in rows], count) for b in places}


def _size(block: np.ndarray) -> float:
    return float(np.linalg.norm(block) / len(block) ** 0.5) if block.size else float("nan")


def _column(values: list[float]) -> Float[Tensor, " B"]:
    return torch.tensor(values, dtype=torch.float64)
