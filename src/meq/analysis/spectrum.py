"""The spectral radius of the coupled map, as an eigenvalue modulus."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from meq.analysis.differential import one_sample
from meq.analysis.eigenpairs import NO_MAP, NOT_FOUND, UNCERTAIN, Pair, leading_pair, leading_pairs
from meq.analysis.linear import RESTARTS, Matrix, largest_singular_value, precision
from meq.analysis.tables import number, spread, text_table
from meq.core.options import checked_options
from meq.core.solution import Solution


@dataclass(frozen=True, eq=False, kw_only=True)
class Spectrum:
    """The eigenvalue of largest modulus per sample, and the operator norm, which is something else."""

    radius: Float[Tensor, " B"]
    """max |lambda(J)|; NaN where it was not found or a sample has no real token."""
    lowest: Float[Tensor, " B"]
    highest: Float[Tensor, " B"]
    """Between these lies the radius, to first order: eigenvalues of a strongly non-normal map may be anywhere within
    a wide range although the residual is small."""
    condition: Float[Tensor, " B"]
    """Of the eigenvalue, |v| |x| / |v^T x| of its left and right vectors: 1 for a normal map."""
    eigenvalue: Complex[Tensor, " B"]
    residual: Float[Tensor, " B"]
    """|J^T v - lambda v| for the unit eigenvector v."""
    operator_norm: Float[Tensor, " B"]
    """|J|, the largest singular value: at least the radius, and no statement about convergence when above 1. NaN
    where it was not asked for."""
    products: Int[Tensor, " B"]
    """What the eigenpair cost, in products with J."""
    norm_products: Int[Tensor, " B"]
    damping: float

    def __str__(self) -> str:
        of = "undamped map" if self.damping == 1 else f"map damped by {self.damping:g}"
        rows = [
            ["spectral radius", radius_in_words(self.radius, self.lowest, self.highest)],
            ["condition of the eigenvalue", spread(self.condition)],
            ["eigenpair residual", spread(self.residual)],
            ["operator norm (not the radius)", spread(self.operator_norm)],
            ["products for the radius", f"{self.products.max().item()} at most"],
            ["products for the norm", f"{self.norm_products.max().item()} at most"],
        ]
        return text_table([of, "median [min, max]"], rows)


@checked_options
def leading_eigenvalue(
    operator: Any,
    solution: Solution,
    *,
    damping: float = 1.0,
    tol: float = 1e-3,
    norms: bool = True,
    exact: bool = False,
) -> Spectrum:
    """The largest eigenvalue of (1 - d) I + d J per sample, d the damping, J = dT/dz at the read state.

    By Arnoldi (ARPACK) on J^T, which has J's eigenvalues, and on J for the other side's vector: together they say how
    far off the eigenvalue may be. `tol` is the residual asked of the eigenpair, relative to the eigenvalue. It is
    tightened where the eigenvalue's condition calls for it; where that is not enough and J is small enough, J is
    formed, as `exact` always does.
    """
    if not damping > 0:
        raise ValueError(f"damping must be positive (1 is the undamped map), got {damping}")
    matrices = [Matrix.of(operator, one_sample(solution, row)) for row in range(len(solution.steps))]
    return spectrum_of(matrices, damping=damping, tol=tol, norms=norms, exact=exact)


def spectrum_of(matrices: Sequence[Matrix], *, damping: float, tol: float, norms: bool, exact: bool) -> Spectrum:
    """`leading_eigenvalue` of Jacobians that are at hand."""
    found = [_measure(matrix.damped(damping), tol, norms=norms, exact=exact) for matrix in matrices]
    for sample in [row for row, (pair, *_) in enumerate(found) if pair is NOT_FOUND]:
        warnings.warn(
            f"the spectral radius of sample {sample} was not found in {RESTARTS} restarts of Arnoldi, because its "
            "largest eigenvalues are too close in modulus: it is reported as NaN; a larger tol may find it",
            RuntimeWarning,
            stacklevel=3,
        )
    return Spectrum(
        radius=torch.tensor([abs(pair.value) for pair, *_ in found], dtype=torch.float64),
        lowest=torch.tensor([pair.lowest for pair, *_ in found], dtype=torch.float64),
        highest=torch.tensor([pair.highest for pair, *_ in found], dtype=torch.float64),
        condition=torch.tensor([pair.condition for pair, *_ in found], dtype=torch.float64),
        eigenvalue=torch.tensor([pair.value for pair, *_ in found], dtype=torch.complex128),
        residual=torch.tensor([pair.residual for pair, *_ in found], dtype=torch.float64),
        operator_norm=torch.tensor([size for _, size, _ in found], dtype=torch.float64),
        products=torch.tensor([counts[0] for *_, counts in found]),
        norm_products=torch.tensor([counts[1] for *_, counts in found]),
        damping=damping,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Eigenvalues:
    """The eigenvalues of largest modulus of J = dT/dz at the read state, per sample, the largest first."""

    values: Complex[Tensor, "B E"]
    """NaN where a sample has fewer entries, or where they were not found. Of a complex pair cut off at the end, one."""
    residual: Float[Tensor, "B E"]
    """|J^T v - lambda v| for the unit eigenvector v."""
    products: Int[Tensor, " B"]
    """What they cost, in products with J."""

    def damped(self, damping: float) -> Complex[Tensor, "B E"]:
        """(1 - d) + d lambda: the eigenvalues of the damped step."""
        return (1 - damping) + damping * self.values

    def __str__(self) -> str:
        columns = zip(self.values.abs().T, self.residual.T, strict=True)
        rows = [[str(place), spread(moduli), spread(left)] for place, (moduli, left) in enumerate(columns, start=1)]
        return text_table(["eigenvalue", "modulus, median [min, max]", "residual"], rows)


@checked_options
def leading_eigenvalues(operator: Any, solution: Solution, *, count: int = 12, tol: float = 1e-3) -> Eigenvalues:
    """The `count` eigenvalues of largest modulus of J per sample, by Arnoldi on J^T; small matrices are formed.

    `tol` is as for `leading_eigenvalue`. Samples are looked at one after the other: give few.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    matrices = [Matrix.of(operator, one_sample(solution, row)) for row in range(len(solution.steps))]
    found = [leading_pairs(matrix, count, tol) for matrix in matrices]
    padded = [[*pairs[:count], *[NO_MAP] * (count - len(pairs))] for pairs in found]
    return Eigenvalues(
        values=torch.tensor([[pair.value for pair in row] for row in padded], dtype=torch.complex128),
        residual=torch.tensor([[pair.residual for pair in row] for row in padded], dtype=torch.float64),
        products=torch.tensor([matrix.products for matrix in matrices]),
    )


@checked_options
def spectral_radius(operator: Any, solution: Solution, *, tol: float = 1e-3) -> Float[Tensor, " B"]:
    """max |lambda(J)| per sample, J = dT/dz of the undamped map at the read state, over the real tokens.

    By Arnoldi, so complex and +- pairs, the normal case for coupled states, come out right. A Rayleigh quotient would
    say 0 for a rotation. `tol` is as for `leading_eigenvalue`. NaN for a sample without real tokens,
    and, with a warning, where the eigenvalues are too crowded to be told apart. A warning says where the map is so far
    from normal that the radius is uncertain, and between what it lies.
    """
    found = leading_eigenvalue(operator, solution, tol=tol, norms=False)
    expected = max(UNCERTAIN, 8 * precision(solution.state))  # rough numbers give rough eigenvalues: no news
    open_ = (found.highest - found.lowest) > 2 * expected * found.radius
    for sample in open_.nonzero().flatten().tolist():
        low, high = number(float(found.lowest[sample])), number(float(found.highest[sample]))
        warnings.warn(
            f"the spectral radius of sample {sample} is uncertain, between {low} and {high}: its map is far from "
            "normal, and a change of J as small as rounding moves its eigenvalues that far",
            RuntimeWarning,
            stacklevel=3,  # above the check of the options
        )
    return found.radius.to(next(iter(solution.state.values())))


def _measure(matrix: Matrix, tol: float, *, norms: bool, exact: bool) -> tuple[Pair, float, tuple[int, int]]:
    """The eigenpair, the operator norm, and the products that they cost."""
    before, size = matrix.products, math.nan
    pair = leading_pair(matrix, tol, exact=exact)
    cost = matrix.products - before
    if matrix.rows.size and (norms or exact):
        size, _ = largest_singular_value(matrix.push, matrix.pull, matrix.rows.size, tol=tol, exact=exact)
    return pair, size, (cost, matrix.products - before - cost)


def radius_in_words(radius: Float[Tensor, " B"], lowest: Float[Tensor, " B"], highest: Float[Tensor, " B"]) -> str:
    """The median and its range; where it may be off by more than a few per cent, between what it lies."""
    words = spread(radius)
    open_ = (highest - lowest) > 2 * UNCERTAIN * radius
    if not bool(open_.any()):
        return words
    return (
        f"{words}; uncertain for {int(open_.sum())} of {len(radius)}, "
        f"between {number(float(lowest[open_].min()))} and {number(float(highest[open_].max()))}"
    )
