"""The block Jacobian J[a, b] = dF_a / dz_b at the read state: who moves whom in one undamped step, and how far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.differential import Derivative, jacobian, one_sample
from meq.analysis.linear import Matrix, block_products, largest_singular_value
from meq.analysis.tables import middle, number, square_table, stacked
from meq.core.options import checked_options
from meq.core.solution import Solution
from meq.core.state import norm, per_sample

Blocks = dict[str, dict[str, Float[Tensor, " B"]]]
"""blocks[a][b] belongs to J_ab = dF_a / dz_b: what b's state does to a's update."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockNorms:
    """Sizes of the blocks, per sample. NaN where a sample lacks a or b."""

    frobenius: Blocks
    standard_error: Blocks
    """Of `frobenius`, from the spread of the probes; 0 where it was computed exactly."""
    spectral: Blocks
    """The operator norm |J_ab|: the most that a small change of b's state can be stretched into a's update."""
    statistic: Blocks
    """s_ab = |J_ab|_F / sqrt(n_a), n_a the real entries of a."""
    cross_self: dict[str, Float[Tensor, " B"]]
    """sqrt(sum_{b != a} s_ab^2) / s_aa per path a."""
    products: int
    """Products with J that were made, for all samples together."""

    def __str__(self) -> str:
        ratios = ", ".join(f"{name} {number(middle(r))}" for name, r in self.cross_self.items())
        parts = [
            square_table("s_ab: update of / by", self.statistic),
            square_table("|J_ab|, operator norm", self.spectral),
            f"cross/self: {ratios or '-'}  ({self.products} products, medians over the samples)",
        ]
        return "\n".join(parts)


@checked_options
def measure_blocks(
    operator: Any,
    solution: Solution,
    *,
    probes: int = 8,
    seed: int = 0,
    exact: bool = False,
    tol: float = 1e-2,
) -> BlockNorms:
    """Frobenius norms by Hutchinson, operator norms from products with J_ab^T J_ab; `exact` forms J instead."""
    if exact:
        return _exact_norms(operator, solution)
    derivative = jacobian(operator, solution)
    frobenius, error = _hutchinson(derivative, solution, probes, seed)
    spectral: list[dict[str, dict[str, float]]] = []
    products = derivative.products
    for row in range(len(solution.steps)):
        matrix = Matrix.of(operator, one_sample(solution, row))
        names = list(matrix.rows.places)
        spectral.append({a: {b: block_norm(matrix, a, b, tol) for b in names} for a in names})
        products += matrix.products
    return _norms(frobenius, error, stacked(spectral), solution, products)


@checked_options
def block_statistics(operator: Any, solution: Solution, *, probes: int = 8, seed: int = 0) -> Blocks:
    """s_ab = |J_ab|_F / sqrt(n_a) per sample, by Hutchinson: E |v_a^T J_ab|^2 = |J_ab|_F^2 for random signs v_a.

    The cheap part of `measure_blocks`: one product per probe and modality, for all samples at once.
    """
    frobenius, _ = _hutchinson(jacobian(operator, solution), solution, probes, seed)
    return _statistic(frobenius, solution)


@checked_options
def dense_jacobian(operator: Any, solution: Solution) -> list[dict[str, dict[str, Float[Tensor, "A C"]]]]:
    """J_ab as matrices over the real entries, one dictionary of blocks per sample; for small problems."""
    found = []
    for row in range(len(solution.steps)):
        matrix = Matrix.of(operator, one_sample(solution, row))
        whole, places = torch.from_numpy(matrix.dense()), matrix.rows.places
        found.append({a: {b: whole[places[a], places[b]] for b in places} for a in places})
    return found


def cross_self_ratio(blocks: Blocks) -> dict[str, Float[Tensor, " B"]]:
    """sqrt(sum_{b != a} s_ab^2) / s_aa per path a, over the modalities that are there; NaN with nobody else to read."""
    ratios = {}
    for name, row in blocks.items():
        others = [s.square() for other, s in row.items() if other != name]
        if others:
            stacked = torch.stack(others)
            total = stacked.nansum(0).where(~stacked.isnan().all(0), torch.nan)
            ratios[name] = total.sqrt() / row[name]
    return ratios


def whole_statistic(blocks: Blocks, solution: Solution) -> Float[Tensor, " B"]:
    """|J| = sqrt(sum_ab |J_ab|_F^2 / n), the root mean square singular value, from |J_ab|_F^2 = n_a s_ab^2."""
    counts = {name: real_entries(name, solution) for name in blocks}
    squares = [counts[a] * torch.stack(list(row.values())).nan_to_num(0).square().sum(0) for a, row in blocks.items()]
    return (torch.stack(squares).sum(0) / torch.stack(list(counts.values())).sum(0)).sqrt()


def real_entries(name: str, solution: Solution) -> Float[Tensor, " B"]:
    """n_a: how many real entries each sample has in this modality."""
    return _real(name, solution).flatten(1).sum(1)


def block_norm(matrix: Matrix, a: str, b: str, tol: float) -> float:
    """|J_ab| of one sample; NaN where it lacks a or b."""
    rows, columns = matrix.rows.own(a), matrix.columns.own(b)
    if len(rows) == 0 or len(columns) == 0:
        return float("nan")
    push, pull = block_products(matrix, rows, columns)
    return largest_singular_value(push, pull, len(columns), tol=tol)[0]


def mean_size(rows: list[np.ndarray], count: int) -> float:
    """|A_ab|_F / sqrt(n_a) from products v_a^T A_ab with random signs v_a; NaN where a or b has no entries."""
    if count == 0 or len(rows[0]) == 0:
        return float("nan")
    return float(np.sqrt(np.mean([np.square(row).sum() for row in rows]) / count))


def _hutchinson(derivative: Derivative, solution: Solution, probes: int, seed: int) -> tuple[Blocks, Blocks]:
    """|J_ab|_F and its standard error, from the spread of |v_a^T J_ab|^2 over the probes."""
    if probes < 1:
        raise ValueError(f"probes must be at least 1, got {probes}")
    generator = torch.Generator().manual_seed(seed)
    frobenius: Blocks = {}
    error: Blocks = {}
    for a, z in derivative.variables.items():
        squares: dict[str, list[Tensor]] = {b: [] for b in derivative.variables}
        for _ in range(probes):
            signs = torch.randint(0, 2, z.shape, generator=generator).to(z) * 2 - 1
            for b, pulled in derivative.pull({a: signs}).items():
                squares[b].append(norm(pulled).square())
        for b, drawn in squares.items():
            total, there = torch.stack(drawn), _present(a, solution) & _present(b, solution)
            size = total.mean(0).sqrt()
            spread = total.std(0) / probes**0.5 if probes > 1 else torch.full_like(size, torch.nan)
            frobenius.setdefault(a, {})[b] = torch.where(there, size, torch.nan)
            # d sqrt(x) = dx / (2 sqrt(x))
            error.setdefault(a, {})[b] = torch.where(there, torch.where(size > 0, spread / (2 * size), 0), torch.nan)
    return frobenius, error


def _exact_norms(operator: Any, solution: Solution) -> BlockNorms:
    dense = dense_jacobian(operator, solution)

    def each(size: Callable[[Tensor], Tensor]) -> Blocks:
        return {a: {b: torch.stack([size(blocks[a][b]) for blocks in dense]) for b in dense[0][a]} for a in dense[0]}

    def operator_norm(block: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(block, 2)

    def absent(block: Tensor) -> Tensor:
        return torch.tensor(torch.nan, dtype=block.dtype)

    frobenius = each(lambda block: block.norm() if block.numel() else absent(block))
    spectral = each(lambda block: operator_norm(block) if block.numel() else absent(block))
    error = {a: {b: 0 * each_norm for b, each_norm in row.items()} for a, row in frobenius.items()}
    products = sum(len(row) for blocks in dense for row in [*_first_blocks(blocks)])
    return _norms(frobenius, error, spectral, solution, products)


def _first_blocks(blocks: dict[str, dict[str, Tensor]]) -> list[Tensor]:
    return [next(iter(row.values())) for row in blocks.values()]


def _norms(frobenius: Blocks, error: Blocks, spectral: Blocks, solution: Solution, products: int) -> BlockNorms:
    statistic = _statistic(frobenius, solution)
    return BlockNorms(
        frobenius=frobenius,
        standard_error=error,
        spectral=spectral,
        statistic=statistic,
        cross_self=cross_self_ratio(statistic),
        products=products,
    )


def _statistic(frobenius: Blocks, solution: Solution) -> Blocks:
    return {
        a: {b: size / real_entries(a, solution).to(size).sqrt() for b, size in row.items()}
        for a, row in frobenius.items()
    }


def _real(name: str, solution: Solution) -> Tensor:
    z, mask = solution.state[name].detach(), solution.masks.get(name)
    dtype = torch.promote_types(z.dtype, torch.float32)
    return torch.ones_like(z, dtype=dtype) if mask is None else per_sample(mask, z).expand_as(z).to(dtype)


def _present(name: str, solution: Solution) -> Tensor:
    mask = solution.masks.get(name)
    if mask is None:
        return torch.ones_like(solution.steps, dtype=torch.bool)
    return mask if mask.ndim == 1 else mask.any(1)
