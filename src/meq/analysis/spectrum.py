"""The spectral radius of the coupled map, as an eigenvalue modulus."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from meq.analysis.differential import one_sample
from meq.analysis.linear import RESTARTS, SMALL, Matrix, largest_singular_value
from meq.analysis.tables import spread, text_table
from meq.core.options import checked_options
from meq.core.solution import Solution

FALLBACK_LIMIT = 1024
"""Up to this many it is formed where Arnoldi fails, as it does on a large rotation, whose moduli are all the same."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Spectrum:
    """The eigenvalue of largest modulus per sample, and the operator norm, which is something else."""

    radius: Float[Tensor, " B"]
    """max |lambda(J)|; NaN where it was not found or a sample has no real token."""
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
            ["spectral radius", spread(self.radius)],
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

    By Arnoldi (ARPACK) on J^T, which has J's eigenvalues. `tol` is the accuracy asked of the eigenpair, relative
    to the eigenvalue, which is itself far more accurate; `exact` forms the matrix instead.
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
    found = [_leading_pairs(matrix, count, tol) for matrix in matrices]
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
    and, with a warning, where the eigenvalues are too crowded to be told apart.
    """
    radius = leading_eigenvalue(operator, solution, tol=tol, norms=False).radius
    return radius.to(next(iter(solution.state.values())))


@dataclass(frozen=True)
class _Pair:
    value: complex
    residual: float


NOT_FOUND = _Pair(complex(math.nan, 0), math.nan)
NO_MAP = _Pair(complex(math.nan, 0), math.nan)


def _measure(matrix: Matrix, tol: float, *, norms: bool, exact: bool) -> tuple[_Pair, float, tuple[int, int]]:
    """The eigenpair, the operator norm, and the products that they cost."""
    if matrix.rows.size == 0:
        return NO_MAP, math.nan, (0, 0)  # a sample without any real token has no map
    if exact or matrix.rows.size <= SMALL:
        dense = matrix.dense()
        return _dense_pair(dense), float(np.linalg.norm(dense, 2)), (matrix.products, 0)
    before = matrix.products
    pair = _arnoldi_pair(matrix, tol)
    cost, size = matrix.products - before, math.nan
    if norms:
        size, _ = largest_singular_value(matrix.push, matrix.pull, matrix.rows.size, tol=tol)
    return pair, size, (cost, matrix.products - before - cost)


def _leading_pairs(matrix: Matrix, count: int, tol: float) -> list[_Pair]:
    """Largest modulus first; none for a sample without real tokens, or where Arnoldi fails on a large matrix."""
    size = matrix.rows.size
    if size == 0:
        return []
    if size <= max(SMALL, count + 2):  # ARPACK wants room above the number of pairs
        return _dense_pairs(matrix.dense(), count)
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    start = np.random.default_rng(0).standard_normal(size)
    if not matrix.pull(start).any():
        return [_Pair(0j, 0.0)] * count
    linear = LinearOperator((size, size), matvec=matrix.pull, dtype=np.float64)
    try:
        values, vectors = eigs(linear, k=count, which="LM", v0=start, tol=tol, maxiter=RESTARTS)
    except ArpackError:
        return _dense_pairs(matrix.dense(), count) if size <= FALLBACK_LIMIT else []
    order = _by_modulus(values)
    return [_checked_pair(matrix, complex(values[place]), vectors[:, place]) for place in order]


def _dense_pairs(dense: np.ndarray, count: int) -> list[_Pair]:
    values, vectors = np.linalg.eig(dense.T)
    return [
        _Pair(
            complex(values[place]),
            float(np.linalg.norm(dense.T @ vectors[:, place] - values[place] * vectors[:, place])),
        )
        for place in _by_modulus(values)[:count]
    ]


def _by_modulus(values: np.ndarray) -> list[int]:
    """Largest first; of a pair the one above the real line first, so that the order does not hang on rounding."""
    return sorted(
        range(len(values)), key=lambda place: (-round(float(abs(values[place])), 9), -float(values[place].imag))
    )


def _arnoldi_pair(matrix: Matrix, tol: float) -> _Pair:
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs  # on use: importing meq stays light

    size = matrix.rows.size
    start = np.random.default_rng(0).standard_normal(size)  # ARPACK would draw from global state
    if not matrix.pull(start).any():
        return _Pair(0j, 0.0)  # a map that ignores its state, of which ARPACK would make an error
    linear = LinearOperator((size, size), matvec=matrix.pull, dtype=np.float64)
    try:
        values, vectors = eigs(linear, k=1, which="LM", v0=start, tol=tol, maxiter=RESTARTS)
    except ArpackError:
        if size <= FALLBACK_LIMIT:
            return _dense_pair(matrix.dense())
        return NOT_FOUND
    return _checked_pair(matrix, complex(values[0]), vectors[:, 0])


def _checked_pair(matrix: Matrix, value: complex, vector: np.ndarray) -> _Pair:
    """The pair with its own residual, from products with the eigenvector's real and imaginary part."""
    image = matrix.pull(vector.real.copy()) + 1j * matrix.pull(vector.imag.copy())
    return _Pair(value, float(np.linalg.norm(image - value * vector) / np.linalg.norm(vector)))


def _dense_pair(dense: np.ndarray) -> _Pair:
    values, vectors = np.linalg.eig(dense.T)
    largest = int(np.abs(values).argmax())
    value, vector = complex(values[largest]), vectors[:, largest]
    return _Pair(value, float(np.linalg.norm(dense.T @ vector - value * vector)))
