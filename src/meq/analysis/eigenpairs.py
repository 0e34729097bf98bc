"""Eigenvalues of one sample's Jacobian, with what their error may be: of a strongly non-normal map it may be all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meq.analysis.linear import FORM_LIMIT, RESTARTS, SMALL, Matrix, precision

FALLBACK_LIMIT = 1024
"""Up to this many it is formed where Arnoldi fails, as it does on a large rotation, whose moduli are all the same."""
UNCERTAIN = 0.02
"""An eigenvalue that may be off by more than this share of itself is looked for again, more carefully."""
NEIGHBOURS = 3
"""Pairs that are looked at from the other side: of several with one modulus, the one that is meant must be there."""
LINEAR = 0.2
"""First-order bounds are trusted up to this share of the eigenvalue; where they are wider, it may be anywhere."""
SQUARINGS = 14


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


NOT_FOUND = Pair(complex(math.nan, 0), math.nan, math.nan)
NO_MAP = Pair(complex(math.nan, 0), math.nan, math.nan)


def leading_pair(matrix: Matrix, tol: float, *, exact: bool) -> Pair:
    """The eigenvalue of largest modulus: by Arnoldi, or from the matrix where it is small or that is not enough."""
    size = matrix.rows.size
    if size == 0:
        return NO_MAP  # a sample without any real token has no map
    if exact or size <= SMALL:
        return dense_pairs(matrix.dense(), 1, precision(matrix.rows.like))[0]
    found = _arnoldi_pair(matrix, tol)
    if found is None:
        found = NOT_FOUND
        limit = FALLBACK_LIMIT
    elif found.is_certain:
        return found
    else:
        limit = FORM_LIMIT
    return dense_pairs(matrix.dense(), 1, precision(matrix.rows.like))[0] if size <= limit else found


def leading_pairs(matrix: Matrix, count: int, tol: float) -> list[Pair]:
    """Largest modulus first; none for a sample without real tokens, or where Arnoldi fails on a large matrix."""
    size = matrix.rows.size
    if size == 0:
        return []
    if size <= max(SMALL, count + 2):  # ARPACK wants room above the number of pairs
        return dense_pairs(matrix.dense(), count, precision(matrix.rows.like))
    if not matrix.pull(_start(size)).any():
        return [Pair(0j, 0.0, 1.0, 0.0, 0.0)] * count
    found = _arnoldi(matrix, transposed=True, count=count, tol=tol, start=_start(size))
    if found is None:
        return dense_pairs(matrix.dense(), count, precision(matrix.rows.like)) if size <= FALLBACK_LIMIT else []
    values, vectors = found
    first = _judged(matrix, values, vectors, tol)
    if not first.is_certain and size <= FORM_LIMIT:
        return dense_pairs(matrix.dense(), count, precision(matrix.rows.like))
    order = by_modulus(values)
    return [first, *(_checked(matrix, values[place], vectors[:, place]) for place in order[1:])]


def dense_pairs(dense: np.ndarray, count: int, rounding: float) -> list[Pair]:
    """From the matrix, balanced by LAPACK; `rounding` is the relative error of its entries.

    With the radius' bounds: |lambda_i| -+ condition_i rounding |J|, to first order, |J| the root mean square singular
    value; and where these are too wide to be of first order, what is true of any matrix:
    |trace J^k / n|^(1/k) <= radius <= |J^k|^(1/k).
    """
    from scipy.linalg import eig  # on use: importing meq stays light

    values, lefts, rights = eig(dense.T, left=True, right=True)
    overlap = np.abs(np.sum(lefts.conj() * rights, axis=0))
    conditions = 1 / np.maximum(overlap, np.finfo(float).tiny)
    errors = conditions * rounding * np.linalg.norm(dense) / len(dense) ** 0.5
    order = by_modulus(values)
    lowest, highest = float(np.max(np.abs(values) - errors)), float(np.max(np.abs(values) + errors))
    if highest - lowest > LINEAR * abs(values[order[0]]):
        lowest, highest = _trace_bound(dense), _power_bound(dense)
    pairs = []
    for place in order[:count]:
        value, vector = complex(values[place]), rights[:, place]
        residual = float(np.linalg.norm(dense.T @ vector - value * vector))
        pairs.append(Pair(value, residual, float(conditions[place]), lowest, highest))
    return pairs


def _trace_bound(dense: np.ndarray) -> float:
    """max over k = 1, 2 of |trace J^k / n|^(1/k): a trace is a sum of eigenvalues, and hardly feels rounding."""
    size = len(dense)
    return max(abs(float(np.trace(dense))) / size, (abs(float(np.sum(dense * dense.T))) / size) ** 0.5)


def _power_bound(dense: np.ndarray) -> float:
    """min over k = 1, 2, 4, ... of |J^k|^(1/k), by squaring a matrix that is scaled to size 1 every time."""
    size = float(np.linalg.norm(dense))
    if size == 0:
        return 0.0
    rounding = len(dense) * np.finfo(float).eps
    power, logarithm, best = dense / size, math.log(size), math.log(size)
    for squarings in range(1, SQUARINGS + 1):
        power = power @ power
        size = float(np.linalg.norm(power)) + rounding
        if size < 1000 * rounding:  # the square is mostly rounding: nothing more to learn from it
            break
        power, logarithm = power / size, 2 * logarithm + math.log(size)
        best = min(best, logarithm / 2**squarings)
    return math.exp(best)


def by_modulus(values: np.ndarray) -> list[int]:
    """Largest first; of a pair the one above the real line first, so that the order does not hang on rounding."""
    return sorted(
        range(len(values)), key=lambda place: (-round(float(abs(values[place])), 9), -float(values[place].imag))
    )


def _arnoldi_pair(matrix: Matrix, tol: float) -> Pair | None:
    """Once at the tolerance asked for, and once more at the one that the eigenvalue's condition calls for."""
    start = _start(matrix.rows.size)
    if not matrix.pull(start).any():
        return Pair(0j, 0.0, 1.0, 0.0, 0.0)  # a map that ignores its state, of which ARPACK would make an error
    found = None
    for _ in range(2):
        pairs = _arnoldi(matrix, transposed=True, count=1, tol=tol, start=start)
        if pairs is None:
            return found
        found = _judged(matrix, *pairs, tol)
        if found.is_certain or not math.isfinite(found.condition):
            return found
        tol, start = max(tol * UNCERTAIN / found.condition, 1e-14), pairs[1][:, 0].real.copy()
    return found


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
    """Eigenvalues of largest modulus and unit vectors of J, or of J^T; None where ARPACK does not find them."""
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
    image = matrix.pull(vector.real.copy()) + 1j * matrix.pull(vector.imag.copy())
    return Pair(complex(value), float(np.linalg.norm(image - value * vector) / np.linalg.norm(vector)))
