"""One sample's derivative as a matrix over its real entries: products, inverses, operator norms."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from meq.analysis.differential import Derivative, jacobian, source_jacobian
from meq.analysis.sources import Sources
from meq.core.solution import Solution
from meq.core.state import Masks, State, detach, per_sample

Product = Callable[[np.ndarray], np.ndarray]
RESTARTS = 100
"""Budget of ARPACK: about twenty products each."""
FORM_LIMIT = 2048
"""Up to this many entries a Jacobian is stored where hundreds of products with it or its inverse are to come."""
SMALL = 64
"""A matrix of at most this many columns is formed from its products: nothing is saved below that."""


class Entries:
    """One sample's real entries as one flat vector of float64, modality after modality."""

    def __init__(self, like: State, masks: Masks) -> None:
        self.like = detach(like)
        self.real = {
            name: per_sample(masks[name], x).expand_as(x) if name in masks else torch.ones_like(x, dtype=torch.bool)
            for name, x in self.like.items()
        }
        ends = np.cumsum([int(real.sum()) for real in self.real.values()])
        starts = [0, *ends[:-1]]
        self.places = {name: slice(int(a), int(b)) for name, a, b in zip(self.like, starts, ends, strict=True)}
        self.size = int(ends[-1])

    def count(self, name: str) -> int:
        return self.places[name].stop - self.places[name].start

    def flat(self, state: State) -> np.ndarray:
        return torch.cat([state[name][real] for name, real in self.real.items()]).detach().double().cpu().numpy()

    def state(self, flat: np.ndarray) -> State:
        values = torch.from_numpy(np.ascontiguousarray(flat.ravel()))
        return {
            name: torch.zeros_like(x).masked_scatter_(self.real[name], values[self.places[name]].to(x))
            for name, x in self.like.items()
        }

    def others(self, name: str) -> np.ndarray:
        """Where the entries of all other modalities are."""
        outside = np.ones(self.size, dtype=bool)
        outside[self.places[name]] = False
        return outside.nonzero()[0]

    def own(self, name: str) -> np.ndarray:
        return np.arange(self.places[name].start, self.places[name].stop)


class Matrix:
    """A linear map between flat vectors, known by its products; `damping` d makes it (1 - d) I + d D."""

    def __init__(self, derivative: Derivative, rows: Entries, columns: Entries, *, damping: float = 1.0) -> None:
        self.derivative, self.rows, self.columns, self.damping = derivative, rows, columns, damping

    @classmethod
    def of(cls, operator: Any, sample: Solution) -> Matrix:
        """J of one sample."""
        entries = Entries(sample.state, sample.masks)
        return cls(jacobian(operator, sample), entries, entries)

    @classmethod
    def of_sources(cls, operator: Any, sample: Solution, sources: Sources) -> Matrix:
        """dT/du of one sample."""
        rows, columns = Entries(sample.state, sample.masks), Entries(sources.values, sources.masks)
        return cls(source_jacobian(operator, sample, sources), rows, columns)

    @property
    def products(self) -> int:
        return self.derivative.products

    def push(self, v: np.ndarray) -> np.ndarray:
        return self._damped(v, self.rows.flat(self.derivative.push(self.columns.state(v))))

    def pull(self, u: np.ndarray) -> np.ndarray:
        return self._damped(u, self.columns.flat(self.derivative.pull(self.rows.state(u))))

    def dense(self) -> np.ndarray:
        """The matrix itself, a row per product."""
        rows = [self.pull(unit) for unit in np.eye(self.rows.size)]
        return np.stack(rows) if rows else np.zeros((0, self.columns.size))

    def damped(self, damping: float) -> Matrix:
        """(1 - d) I + d D"""
        return Matrix(self.derivative, self.rows, self.columns, damping=damping)

    def formed(self) -> Formed:
        """The same map with its matrix at hand."""
        return Formed(self, self.dense())

    def formed_if_small(self) -> Matrix:
        """The same map, its matrix at hand where forming it is cheaper than the hundreds of products to come."""
        return self.formed() if self.rows.size <= FORM_LIMIT else self

    def _damped(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return after if self.damping == 1 else (1 - self.damping) * before.ravel() + self.damping * after


class Formed(Matrix):
    """A linear map that is stored as a matrix."""

    def __init__(self, source: Matrix, matrix: np.ndarray) -> None:
        super().__init__(source.derivative, source.rows, source.columns, damping=source.damping)
        self.matrix = matrix

    def push(self, v: np.ndarray) -> np.ndarray:
        return self.matrix @ v.ravel()

    def pull(self, u: np.ndarray) -> np.ndarray:
        return self.matrix.T @ u.ravel()

    def dense(self) -> np.ndarray:
        return self.matrix

    def damped(self, damping: float) -> Formed:
        return Formed(self, (1 - damping) * np.eye(len(self.matrix)) + damping * self.matrix)


def block_products(
    matrix: Matrix, rows: np.ndarray, columns: np.ndarray
) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """Products with a block of the matrix, and with its transpose."""

    def push(v: np.ndarray) -> np.ndarray:
        return matrix.push(placed(v, columns, matrix.columns.size))[rows]

    def pull(u: np.ndarray) -> np.ndarray:
        return matrix.pull(placed(u, rows, matrix.rows.size))[columns]

    return push, pull


def placed(values: np.ndarray, where: np.ndarray, size: int) -> np.ndarray:
    """A vector that is zero but for the values, at their places."""
    whole = np.zeros(size)
    whole[where] = values.ravel()
    return whole


class Inverse:
    """(I - J)^-1 as products: by its factors where J is stored, by GMRES otherwise.

    `within` restricts J to a block on its diagonal, given by the places of its entries.
    """

    def __init__(self, matrix: Matrix, *, tol: float, within: np.ndarray | None = None, budget: int = 300) -> None:
        self.tol, self.budget = tol, budget
        places = np.arange(matrix.rows.size) if within is None else within
        self.block_push, self.block_pull = block_products(matrix, places, places)
        self.singular = False
        """I - J has no inverse that this precision can tell; known beforehand only where J is stored."""
        self.residual = 0.0
        """The largest relative residual of all solves so far."""
        self.factors: Any = None
        if isinstance(matrix, Formed) and len(places):
            block = matrix.matrix[np.ix_(places, places)]
            self.factors, smallest = _factored(np.eye(len(places)) - block)
            self.singular = smallest < 10 * precision(matrix.rows.like)  # the rounding of J itself, next to I

    def push(self, v: np.ndarray) -> np.ndarray:
        return self._solved(lambda x: x - self.block_push(x), v, transposed=False)

    def pull(self, u: np.ndarray) -> np.ndarray:
        return self._solved(lambda x: x - self.block_pull(x), u, transposed=True)

    def _solved(self, product: Product, b: np.ndarray, *, transposed: bool) -> np.ndarray:
        if self.singular:
            solved = Solved(np.full_like(b, np.nan), np.inf)
        elif self.factors is None:
            solved = solve_linear(product, b, tol=self.tol, budget=self.budget)
        else:
            solved = self._by_factors(product, b, transposed=transposed)
        self.residual = max(self.residual, solved.residual)
        return solved.x

    def _by_factors(self, product: Product, b: np.ndarray, *, transposed: bool) -> Solved:
        from scipy.linalg import lu_solve

        x = lu_solve(self.factors, b.ravel(), trans=1 if transposed else 0)
        size = float(np.linalg.norm(b))
        return Solved(x, float(np.linalg.norm(b.ravel() - product(x)) / size) if size else 0.0)


def _factored(whole: np.ndarray) -> tuple[Any, float]:
    """LU factors, and LAPACK's estimate of 1 / |A^-1|, which costs far less than the smallest singular value would."""
    from scipy.linalg import LinAlgWarning, lapack, lu_factor

    with warnings.catch_warnings():  # a singular matrix is an answer here, and the estimate says so
        warnings.simplefilter("ignore", LinAlgWarning)
        factors = lu_factor(whole)
    size = np.linalg.norm(whole, 1)
    return factors, float(size * lapack.dgecon(factors[0], size)[0])


@dataclass(frozen=True)
class Solved:
    """x with A x = b, and how well: |b - A x| / |b|."""

    x: np.ndarray
    residual: float


def solve_linear(product: Product, b: np.ndarray, *, tol: float, budget: int) -> Solved:
    """Solve A x = b by GMRES, A known by its products; the residual is that of the answer, not GMRES's own estimate."""
    from scipy.sparse.linalg import LinearOperator, gmres  # on use: importing meq stays light

    size = float(np.linalg.norm(b))
    if size == 0:
        return Solved(np.zeros_like(b), 0.0)
    matrix = LinearOperator((len(b), len(b)), matvec=product, dtype=np.float64)
    restart = min(len(b), 50, budget)
    x, _ = gmres(matrix, b, rtol=tol, atol=0.0, restart=restart, maxiter=max(1, budget // restart))
    return Solved(x, float(np.linalg.norm(b - product(x)) / size))


def precision(state: State) -> float:
    """The relative rounding error of the coarsest of a state's dtypes."""
    return max(torch.finfo(x.dtype).eps for x in state.values())


def reachable_tolerance(state: State) -> float:
    """A relative residual that products in this precision can reach."""
    coarsest = precision(state)
    return 1e-10 if coarsest < 1e-12 else 50 * coarsest


def largest_singular_value(
    product: Product, transposed: Product, size: int, *, tol: float, exact: bool = False
) -> tuple[float, np.ndarray]:
    """|A|, the operator norm, and the unit vector v that A stretches most, from products with A^T A.

    A^T A is symmetric, so rotations cannot fool it. By Lanczos, which is power iteration that remembers its path: the
    largest singular values of a coupled map lie close together, where plain power iteration stalls below them.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh  # on use: importing meq stays light

    if size == 0:
        return 0.0, np.zeros(0)
    if exact or size <= SMALL:
        _, values, rights = np.linalg.svd(np.stack([product(unit) for unit in np.eye(size)], axis=1))
        return (float(values[0]), rights[0]) if len(values) else (0.0, np.eye(size)[0])
    start = np.random.default_rng(0).standard_normal(size)
    if not transposed(product(start)).any():
        return 0.0, start / np.linalg.norm(start)
    squared = LinearOperator((size, size), matvec=lambda v: transposed(product(v)), dtype=np.float64)
    try:
        values, vectors = eigsh(squared, k=1, v0=start, tol=tol, maxiter=RESTARTS)
    except ArpackNoConvergence as error:
        raise ArithmeticError(
            f"an operator norm was not found to {tol:g} in {RESTARTS} restarts of Lanczos; a larger tol may find it"
        ) from error
    return float(max(values[0], 0.0) ** 0.5), vectors[:, 0]
