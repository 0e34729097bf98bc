"""The block Jacobian J[a, b] = dF_a / dz_b at the read state: who moves whom in one undamped step, and how far.

From the sizes of its blocks follow conditions under which the equilibrium exists and the iteration finds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.products import Derivative, Entries, LinearMap, Matrix, jacobian, jacobians, placed
from meq.analysis.spectrum import leading_eigenvalue
from meq.analysis.tables import column, join_samples, middle, number, spread, square_table, text_table
from meq.core.solution import Solution
from meq.core.state import count_entries, norm
from meq.options import checked_options

Blocks = dict[str, dict[str, Float[Tensor, " B"]]]
"""blocks[a][b] belongs to J_ab = dF_a / dz_b: what b's state does to a's update."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockNorms:
    """Sizes of the blocks, per sample. NaN where a sample lacks a or b."""

    frobenius: Blocks
    standard_error: Blocks
    """The standard error of `frobenius`, from the spread of the probes; 0 where it was computed exactly."""
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
        closing = f"cross/self: {ratios or '-'}  ({self.products} products, medians over the samples)"
        tables = ("s_ab: update of / by", self.statistic), ("|J_ab|, operator norm", self.spectral)
        return "\n".join([*(square_table(*each) for each in tables), closing])


@checked_options
def measure_blocks(
    operator: Any, solution: Solution, *, probes: int = 8, seed: int = 0, exact: bool = False, tol: float = 1e-2
) -> BlockNorms:
    """Frobenius norms by Hutchinson, operator norms from products with J_ab^T J_ab; `exact` forms J instead."""
    frobenius: Blocks = {}
    error: Blocks = {}
    products = 0
    if not exact:
        derivative = jacobian(operator, solution)
        frobenius, error = _hutchinson(derivative, solution, probes, seed)
        products = derivative.products
    spectral, sizes = [], []
    for matrix in jacobians(operator, solution):
        matrix = matrix.formed() if exact else matrix
        places = matrix.rows.places
        spectral.append({a: {b: _block_norm(matrix, a, b, tol=tol, exact=exact) for b in places} for a in places})
        if exact:
            dense = matrix.dense()
            sizes.append({a: {b: _frobenius(dense[places[a], places[b]]) for b in places} for a in places})
        products += matrix.products
    if exact:
        frobenius = join_samples(sizes)
        error = {a: {b: 0 * size for b, size in row.items()} for a, row in frobenius.items()}
    statistic = _statistic(frobenius, solution)
    return BlockNorms(
        frobenius=frobenius,
        standard_error=error,
        spectral=join_samples(spectral),
        statistic=statistic,
        cross_self=cross_self_ratio(statistic),
        products=products,
    )


@checked_options
def block_statistics(
    operator: Any, solution: Solution, *, probes: int = 8, seed: int = 0, fused: bool = False
) -> Blocks:
    """s_ab = |J_ab|_F / sqrt(n_a) per sample, by Hutchinson: E |v_a^T J_ab|^2 = |J_ab|_F^2 for random signs v_a.

    The cheap part of `measure_blocks`: one product per probe and modality, for all samples at once. `fused` attention
    makes it cheaper and the last digits others.
    """
    frobenius, _ = _hutchinson(jacobian(operator, solution, fused=fused), solution, probes, seed)
    return _statistic(frobenius, solution)


@checked_options
def dense_jacobian(operator: Any, solution: Solution) -> list[dict[str, dict[str, Float[Tensor, "A C"]]]]:
    """J_ab as matrices over the real entries, one dictionary of blocks per sample; for small problems."""
    found = []
    for matrix in jacobians(operator, solution):
        whole, places = torch.from_numpy(matrix.dense()), matrix.rows.places
        found.append({a: {b: whole[places[a], places[b]] for b in places} for a in places})
    return found


def cross_self_ratio(blocks: Blocks) -> dict[str, Float[Tensor, " B"]]:
    """sqrt(sum_{b != a} s_ab^2) / s_aa per path a, over the modalities that are there; NaN where it is alone."""
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
    counts = {name: count_entries(solution.state[name], solution.masks.get(name)) for name in blocks}
    squares = [counts[a] * torch.stack(list(row.values())).nan_to_num(0).square().sum(0) for a, row in blocks.items()]
    return (torch.stack(squares).sum(0) / torch.stack(list(counts.values())).sum(0)).sqrt()


def random_signs(entries: Entries, probes: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Per modality a, `probes` vectors v_a of random signs: |v_a^T A_ab|^2 has the mean |A_ab|_F^2."""
    return {a: random.choice([-1.0, 1.0], (probes, entries.count(a))) for a in entries.places}


def unit_vectors(entries: Entries) -> dict[str, np.ndarray]:
    """Every direction once, in place of random signs: the mean of |v_a^T A_ab|^2 is |A_ab|_F^2 itself."""
    return {a: np.eye(entries.count(a)) * entries.count(a) ** 0.5 for a in entries.places}


def pull_probes(linear: LinearMap, entries: Entries, probes: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """v_a^T A for the probes of every modality."""
    return {a: [linear.pull(placed(v, entries.own(a), entries.size)) for v in rows] for a, rows in probes.items()}


def sizes_by_block(products: dict[str, list[np.ndarray]], rows: Entries, columns: Entries) -> Blocks:
    """|A_ab|_F / sqrt(n_a) of one sample for every pair, from what `pull_probes` gives."""
    return {
        a: {b: column([mean_size([v[place] for v in drawn], rows.count(a))]) for b, place in columns.places.items()}
        for a, drawn in products.items()
    }


def mean_size(rows: list[np.ndarray], count: int) -> float:
    """|A_ab|_F / sqrt(n_a) from products v_a^T A_ab with random signs v_a; NaN where a or b has no entries."""
    if count == 0 or len(rows[0]) == 0:
        return math.nan
    return float(np.sqrt(np.mean([np.square(row).sum() for row in rows]) / count))


def _block_norm(matrix: Matrix, a: str, b: str, *, tol: float, exact: bool) -> Float[Tensor, " B"]:
    """|J_ab| of one sample; NaN where it lacks a or b."""
    rows, columns = matrix.rows.own(a), matrix.columns.own(b)
    if len(rows) == 0 or len(columns) == 0:
        return column([math.nan])
    return column([matrix.block(rows, columns).norm(tol=tol, exact=exact)])


def _frobenius(block: np.ndarray) -> Float[Tensor, " B"]:
    return column([float(np.linalg.norm(block)) if block.size else math.nan])


def _hutchinson(derivative: Derivative, solution: Solution, probes: int, seed: int) -> tuple[Blocks, Blocks]:
    """|J_ab|_F and its standard error, from the spread of |v_a^T J_ab|^2 over the probes."""
    if probes < 1:
        raise ValueError(f"probes must be at least 1, got {probes}")
    generator = torch.Generator().manual_seed(seed)
    frobenius: Blocks = {}
    error: Blocks = {}
    there = {name: count_entries(z, solution.masks.get(name)) > 0 for name, z in derivative.variables.items()}
    for a, z in derivative.variables.items():
        squares: dict[str, list[Tensor]] = {b: [] for b in derivative.variables}
        for _ in range(probes):
            signs = torch.randint(0, 2, z.shape, generator=generator).to(z) * 2 - 1
            for b, pulled in derivative.pull({a: signs}).items():
                squares[b].append(norm(pulled).square())
        for b, drawn in squares.items():
            total, both = torch.stack(drawn), there[a] & there[b]
            size = total.mean(0).sqrt()
            spread = total.std(0) / probes**0.5 if probes > 1 else torch.full_like(size, torch.nan)
            frobenius.setdefault(a, {})[b] = torch.where(both, size, torch.nan)
            # d sqrt(x) = dx / (2 sqrt(x))
            error.setdefault(a, {})[b] = torch.where(both, torch.where(size > 0, spread / (2 * size), 0), torch.nan)
    return frobenius, error


def _statistic(frobenius: Blocks, solution: Solution) -> Blocks:
    found: Blocks = {}
    for a, row in frobenius.items():
        count = count_entries(solution.state[a], solution.masks.get(a))
        found[a] = {b: size / count.to(size).sqrt() for b, size in row.items()}
    return found


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
    def _named(self) -> dict[str, Tensor]:
        return dict(zip(IMPLIES, (self.radius, self.norm, self.blocks), strict=True))

    @property
    def invertible(self) -> list[str]:
        """Per sample, what shows that I - J is invertible; "nothing" where no condition holds."""
        named, rows = self._named, range(len(self.radius))
        shown = [[name for name, values in named.items() if float(values[row]) < 1] for row in rows]
        return [" and ".join(names) or "nothing" for names in shown]

    def __str__(self) -> str:
        lines = []
        for name, values in self._named.items():
            applies = values[~values.isnan()]
            holds = f"{int((applies < 1).sum())} of {len(values)}"
            if name == "blocks" and len(applies) < len(values):
                holds += f", does not apply to {len(values) - len(applies)}"
            lines.append([name, spread(values), spread(1 - values), holds])
        table = text_table(["condition", "value", "margin", "holds for"], lines)
        return "\n".join([table, "where it holds,", *(f"  {name}: {words}" for name, words in IMPLIES.items())])


@checked_options
def check_conditions(operator: Any, solution: Solution, *, exact: bool = False, tol: float = 1e-3) -> Conditions:
    """Measure every condition at the read state of every sample; `exact` forms the Jacobian."""
    spectrum = leading_eigenvalue(operator, solution, tol=tol, exact=exact)
    norms = measure_blocks(operator, solution, probes=1, exact=exact, tol=tol).spectral
    blocks = column(_comparison_radius(norms, row) for row in range(len(solution.steps)))
    return Conditions(radius=spectrum.radius, norm=spectrum.operator_norm, blocks=blocks, norms=norms)


def _comparison_radius(norms: Blocks, row: int) -> float:
    """rho(C) from |J_ab| of one sample; NaN where some |J_aa| is not below 1. Absent modalities are left out."""
    of = {a: {b: float(values[row]) for b, values in line.items()} for a, line in norms.items()}
    present = [a for a in of if not math.isnan(of[a][a])]
    if not present or any(of[a][a] >= 1 for a in present):
        return math.nan
    comparison = np.array([[0.0 if a == b else of[a][b] / (1 - of[a][a]) for b in present] for a in present])
    return float(np.abs(np.linalg.eigvals(comparison)).max())
