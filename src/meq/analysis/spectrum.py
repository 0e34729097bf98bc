"""The spectral radius of the coupled map, as an eigenvalue modulus, with what its error may be.

Eigenvalues of a strongly non-normal map may be off by all of their size although their residual is small; so every
eigenvalue is looked at from both sides (of J and of J^T), which gives its condition, and with it bounds of the radius.
"""

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

from meq.analysis.products import FORM_LIMIT, RESTARTS, SMALL, Matrix, jacobians, precision
from meq.analysis.tables import column, number, spread, text_table
from meq.core.solution import Solution
from meq.options import checked_options

FALLBACK_LIMIT = 1024
"""Up to this many it is formed where Arnoldi fails, as it does on a large rotation, whose moduli are all the same."""
UNCERTAIN = 0.02
"""An eigenvalue that may be off by more than this share of itself is looked for again, more carefully."""
NEIGHBOURS = 3
"""Pairs that are looked at from the other side: of several with one modulus, the one that is meant must be there."""
LINEAR = 0.2
"""Bounds from conditions are trusted up to this share of the eigenvalue; where they are wider, it may be anywhere."""
SQUARINGS = 14
BACKWARD = 25 * np.finfo(float).eps
"""LAPACK decomposes a matrix that differs from the given one by up to this share of its Frobenius norm: measured on
drawn matrices of 2 to 300 columns, full, triangular and of rank 2, where the largest was 24 eps."""
RING = 8.0
"""Of a ring that a change made of one eigenvalue, neighbours are up to 2 pi times their reach apart: one cluster."""
TINY = 1e-150
"""Unit vectors of both sides with a smaller product than this are at right angles; its inverse can still be squared."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Spectrum:
    """The eigenvalue of largest modulus per sample, and the operator norm, which is something else."""

    radius: Float[Tensor, " B"]
    """max |lambda(J)|; NaN where it was not found or a sample has no real token."""
    lowest: Float[Tensor, " B"]
    highest: Float[Tensor, " B"]
    """Lower and upper bound of the radius, to first order where J was not formed: eigenvalues of a strongly
    non-normal map may be anywhere within a wide range although the residual is small."""
    condition: Float[Tensor, " B"]
    """The condition number of the eigenvalue, |v| |x| / |v^T x| of its left and right vectors: 1 for a normal map."""
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
    return spectrum_of(list(jacobians(operator, solution)), damping=damping, tol=tol, norms=norms, exact=exact)


def spectrum_of(matrices: Sequence[Matrix], *, damping: float, tol: float, norms: bool, exact: bool) -> Spectrum:
    """`leading_eigenvalue` of Jacobians that are at hand."""
    pairs, sizes, costs, norm_costs = [], [], [], []
    for sample, matrix in enumerate(matrix.damped(damping) for matrix in matrices):
        before = matrix.products
        found = leading_pairs(matrix, 1, tol, exact=exact)
        if matrix.rows.size and not found:
            warnings.warn(
                f"the spectral radius of sample {sample} was not found in {RESTARTS} restarts of Arnoldi, because its "
                "largest eigenvalues are too close in modulus: it is reported as NaN; a larger tol may find it",
                RuntimeWarning,
                stacklevel=3,
            )
        pairs += found or [MISSING]
        costs.append(matrix.products - before)
        sizes.append(matrix.norm(tol=tol, exact=exact) if matrix.rows.size and (norms or exact) else math.nan)
        norm_costs.append(matrix.products - before - costs[-1])
    return Spectrum(
        radius=column(abs(pair.value) for pair in pairs),
        lowest=column(pair.lowest for pair in pairs),
        highest=column(pair.highest for pair in pairs),
        condition=column(pair.condition for pair in pairs),
        eigenvalue=torch.tensor([pair.value for pair in pairs], dtype=torch.complex128),
        residual=column(pair.residual for pair in pairs),
        operator_norm=column(sizes),
        products=torch.tensor(costs),
        norm_products=torch.tensor(norm_costs),
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
    matrices = list(jacobians(operator, solution))
    found = [leading_pairs(matrix, count, tol) for matrix in matrices]
    padded = [[*pairs[:count], *[MISSING] * (count - len(pairs))] for pairs in found]
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

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2).eval()
    >>> with torch.no_grad():
    ...     out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> meq.spectral_radius(model.operator, out.solution).shape  # B
    torch.Size([2])
    """
    found = leading_eigenvalue(operator, solution, tol=tol, norms=False)
    expected = max(UNCERTAIN, 8 * precision(solution.state))  # low precision is no reason to warn
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


@dataclass(frozen=True)
class Pair:
    """An eigenvalue of largest modulus, its residual, and between which values the radius lies."""

    value: complex
    residual: float
    """|J^T v - lambda v| for the unit vector v."""
    condition: float = 1.0
    """|v| |x| / |v^T x| of the left and the right eigenvector: how much larger than a change of J its effect may be."""
    lowest: float = math.nan
    highest: float = math.nan

    @property
    def is_certain(self) -> bool:
        return bool(self.highest - self.lowest <= 2 * UNCERTAIN * abs(self.value))


MISSING = Pair(complex(math.nan, 0), math.nan, math.nan)
"""Stands for what was not found, and for samples without any real token, which have no map."""


def leading_pairs(matrix: Matrix, count: int, tol: float, *, exact: bool = False) -> list[Pair]:
    """Largest modulus first: by Arnoldi, or from the matrix where it is small or Arnoldi is not enough.

    None for a sample without real tokens, or where Arnoldi fails on a large matrix. A single pair is looked for once at
    the tolerance asked for, and once more at the one that its condition calls for.
    """
    size = matrix.rows.size
    if size == 0:
        return []
    if exact or size <= max(SMALL, count + 2):  # ARPACK wants room above the number of pairs
        return dense_pairs(matrix, count)
    start = _start(size)
    if not matrix.pull(start).any():  # a map that ignores its state, of which ARPACK would make an error
        return [Pair(0j, 0.0, 1.0, 0.0, 0.0)] * count
    first, values, vectors = None, np.zeros(0), np.zeros((0, 0))
    for _ in range(2 if count == 1 else 1):
        found = _arnoldi(matrix, transposed=True, count=count, tol=tol, start=start)
        if found is None:
            break
        values, vectors = found
        if count > 1 and size > FORM_LIMIT:  # how certain it is would decide whether it is formed
            return [_checked(matrix, values[place], vectors[:, place]) for place in by_modulus(values)]
        first = _judged(matrix, values, vectors, tol)
        if first.is_certain or not math.isfinite(first.condition):
            break
        tol, start = max(tol * UNCERTAIN / first.condition, 1e-14), vectors[:, 0].real.copy()
    if first is None:
        return dense_pairs(matrix, count) if size <= FALLBACK_LIMIT else []
    if not first.is_certain and size <= FORM_LIMIT:
        return dense_pairs(matrix, count)
    return [first, *(_checked(matrix, values[place], vectors[:, place]) for place in by_modulus(values)[1:])]


def dense_pairs(matrix: Matrix, count: int) -> list[Pair]:
    """From the formed matrix, balanced by LAPACK, with the bounds of the radius that `_bounds` finds."""
    dense = matrix.dense()
    found = _decomposed(dense)
    lowest, highest = _bounds(dense, precision(matrix.rows.like), found)
    pairs = []
    for place in by_modulus(found.values)[:count]:
        value, vector = complex(found.values[place]), found.rights[:, place]
        residual = float(np.linalg.norm(dense.T @ vector - value * vector))
        pairs.append(Pair(value, residual, float(np.linalg.norm(found.lefts[:, place])), lowest, highest))
    return pairs


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Eigenvalues and the vectors of both sides, a column each.

    The rights have length 1, and every left's product with its right is 1: its length is the eigenvalue's condition.
    """

    values: np.ndarray
    lefts: np.ndarray
    rights: np.ndarray


def _decomposed(dense: np.ndarray) -> Decomposition:
    """Of the transpose, which is what Arnoldi looks at too."""
    from scipy.linalg import eig  # on use: importing meq stays light

    values, lefts, rights = eig(dense.T, left=True, right=True)
    overlap = np.sum(lefts.conj() * rights, axis=0)
    return Decomposition(values, lefts / np.where(np.abs(overlap) > TINY, overlap, TINY).conj(), rights)


def _bounds(dense: np.ndarray, rounding: float, found: Decomposition) -> tuple[float, float]:
    """Between which values the radius of a matrix with this relative rounding of its entries lies.

    From the disks of its clusters; and where these are too wide, also from what is true of any matrix:
    |trace J^k / n|^(1/k) <= radius <= |J^k|^(1/k). Rounding is taken to change a matrix by its share of the root mean
    square singular value, in norm.
    """
    size = float(np.linalg.norm(dense))
    change = rounding * size / len(dense) ** 0.5
    lowest, highest = _cluster_bounds(found, change + BACKWARD * size)
    if highest - lowest > LINEAR * float(np.abs(found.values).max()):
        return max(lowest, _trace_bound(dense, change)), min(highest, _power_bound(dense, change))
    return lowest, highest


def _cluster_bounds(found: Decomposition, change: float) -> tuple[float, float]:
    """Bounds of the radius where the matrix may be another one, no further away than `change`, in norm.

    An eigenvalue far from all others moves by its condition times the change. That is false of those that lie close
    together: a defective eigenvalue, once rounded, is a ring of m, each of which promises an m-th of its distance from
    the truth. So a leading eigenvalue and all whose disks touch its own, or may be of one ring with it, are a cluster
    that moves together; and so on until none touch. The disks of a cluster keep as many eigenvalues as it has. What
    cannot lead is judged to first order.
    """
    moduli, clusters, labels = np.abs(found.values), 0, np.arange(len(found.values))
    lowest, highest = 0.0, math.inf
    while labels.max() + 1 != clusters:
        clusters, reach = labels.max() + 1, _reach(found, labels, change)
        lowest, highest = _disk_bounds(moduli, reach, labels)
        if reach.max() > 2 * moduli.max():  # it touches all others
            return 0.0, math.inf
        labels = _touching(found.values, reach, leading=moduli + reach >= lowest)
    return lowest, highest


def _reach(found: Decomposition, labels: np.ndarray, change: float) -> np.ndarray:
    """How far eigenvalues may move: one alone by its condition times the change, a cluster by |X| |Y| times the change
    (Bauer and Fike), X and Y its vectors of both sides."""
    stretch = np.linalg.norm(found.lefts, axis=0)
    for label in np.flatnonzero(np.bincount(labels) > 1):
        members = labels == label
        stretch[members] = np.linalg.norm(found.rights[:, members], 2) * np.linalg.norm(found.lefts[:, members], 2)
    return change * stretch


def _disk_bounds(moduli: np.ndarray, reach: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The radius is no less than what is nearest to 0 in the disks of any one cluster, and within one of all disks."""
    nearest = np.full(labels.max() + 1, np.inf)
    np.minimum.at(nearest, labels, moduli - reach)
    return max(float(nearest.max()), 0.0), float(np.max(moduli + reach))


def _touching(values: np.ndarray, reach: np.ndarray, *, leading: np.ndarray) -> np.ndarray:
    """Labels 0, 1, ... of clusters: disks that touch a leading one, directly or through others that lead."""
    from scipy.sparse.csgraph import connected_components  # on use: importing meq stays light

    joined = np.maximum(reach[:, None] + reach, RING * np.minimum(reach[:, None], reach))
    touching = np.abs(values[:, None] - values) <= joined
    return np.asarray(connected_components(touching & (leading[:, None] | leading), directed=False)[1])


def _trace_bound(dense: np.ndarray, change: float) -> float:
    """max over k = 1, 2 of |trace J^k / n|^(1/k): a trace is a sum of eigenvalues, and hardly feels a change of J."""
    size, middle = len(dense), float(np.linalg.norm(dense)) / len(dense) ** 0.5
    change += size * float(np.finfo(np.float64).eps) * middle  # of the sums themselves
    first = abs(float(np.trace(dense))) / size - change
    second = abs(float(np.sum(dense * dense.T))) / size - change * (2 * middle + change)
    return max(first, max(second, 0.0) ** 0.5)


def _power_bound(dense: np.ndarray, change: float) -> float:
    """min over k = 1, 2, 4, ... of |J^k|^(1/k), by squaring a matrix that is scaled to size 1 every time.

    What the change of J makes of its power is carried along: |(P + D)^2 - P^2| <= |D| (2 |P| + |D|).
    """
    size = _size(dense) + change
    if size == 0:
        return 0.0
    power, error, logarithm, best = dense / size, change / size, math.log(size), math.log(size)
    for squarings in range(1, SQUARINGS + 1):
        power = power @ power
        error = error * (2 + error) + len(dense) * np.finfo(float).eps
        size = _size(power) + error
        power, error, logarithm = power / size, error / size, 2 * logarithm + math.log(size)
        best = min(best, logarithm / 2**squarings)
    return math.exp(best)


def _size(dense: np.ndarray) -> float:
    """No less than the operator norm, and cheap: the smaller one of two such norms."""
    return float(min(np.linalg.norm(dense), (np.linalg.norm(dense, 1) * np.linalg.norm(dense, np.inf)) ** 0.5))


def by_modulus(values: np.ndarray) -> list[int]:
    """Largest first; of a pair the one above the real line first, so that the order does not hang on rounding."""
    return sorted(
        range(len(values)), key=lambda place: (-round(float(abs(values[place])), 9), -float(values[place].imag))
    )


def _judged(matrix: Matrix, values: np.ndarray, vectors: np.ndarray, tol: float) -> Pair:
    """The leading pair with its error: its residual, or the rounding of the products, times its condition."""
    first = by_modulus(values)[0]
    value, vector = complex(values[first]), vectors[:, first]
    found = _checked(matrix, value, vector)
    other = _other_side(matrix, value, vector, tol)
    if other is None:
        return Pair(value, found.residual, math.inf, 0.0, math.inf)
    across, right = other
    condition = float(1 / max(abs(np.sum(vector * right)), np.finfo(float).tiny))  # both have length 1
    rounding = precision(matrix.rows.like) * abs(value)
    error = condition * max(found.residual, rounding) + abs(across - value)
    size = max(abs(value), abs(across))
    lowest = size - error if error <= LINEAR * size else 0.0
    return Pair(value, found.residual, condition, lowest, size + error)


def _other_side(matrix: Matrix, value: complex, vector: np.ndarray, tol: float) -> tuple[complex, np.ndarray] | None:
    """The eigenvalue of J next to this one of J^T, and its vector. Several are asked for only where one modulus has
    several eigenvalues and another one came."""
    found = None
    for count in (1, NEIGHBOURS):
        other = _arnoldi(matrix, transposed=False, count=count, tol=tol, start=vector.real.copy())
        if other is None:
            return found
        values = np.concatenate([other[0], other[0].conj()])  # of a complex pair either may have come
        vectors = np.concatenate([other[1], other[1].conj()], axis=1)
        place = int(np.argmin(np.abs(values - value)))
        found = complex(values[place]), vectors[:, place]
        if abs(found[0] - value) <= UNCERTAIN * abs(value):
            return found
    return found


def _arnoldi(
    matrix: Matrix, *, transposed: bool, count: int, tol: float, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Eigenvalues of largest modulus and unit vectors of J, or of J^T; None where they are not found.

    In the Krylov space that all samples grow together, or, where that may not grow so far, by ARPACK, which begins anew
    with the best of it.
    """
    if matrix.stored is None and matrix.among is not None:
        together, place = matrix.among
        found = together.leading(place, transposed=transposed, count=count, tol=tol, damping=matrix.damping)
        if found is not None:
            return found
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs  # on use: importing meq stays light

    size = matrix.rows.size
    product = matrix.pull if transposed else matrix.push
    linear = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        return eigs(linear, k=count, which="LM", v0=start, tol=tol, maxiter=RESTARTS)
    except ArpackError:
        return None


def _start(size: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(size)  # ARPACK would draw from global state


def _checked(matrix: Matrix, value: complex, vector: np.ndarray) -> Pair:
    """The pair with its own residual, from products with the eigenvector's real and imaginary part."""
    image = matrix.pull(vector.real.copy())
    if vector.imag.any():
        image = image + 1j * matrix.pull(vector.imag.copy())
    return Pair(complex(value), float(np.linalg.norm(image - value * vector) / np.linalg.norm(vector)))
