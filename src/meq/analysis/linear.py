"""Derivatives of an operator as linear maps: products in both directions, never a matrix unless one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from meq.analysis.sources import Sources
from meq.core.operator import evaluate
from meq.core.solution import Solution
from meq.core.state import Masks, State, detach, per_sample, take_rows


class Derivative:
    """D = d outputs / d variables, from one graph that is walked once per product; every sample has its own D.

    `push` gives D v and `pull` gives D^T u. Entries that a mask hides are zero on the way in and on the way out.
    """

    def __init__(self, outputs: State, variables: State, output_masks: Masks, variable_masks: Masks) -> None:
        self.outputs, self.variables = outputs, variables
        self.output_masks, self.variable_masks = output_masks, variable_masks
        self.products = 0
        self._cotangents: State | None = None
        self._pulled: State = {}

    def pull(self, u: State) -> State:
        """D^T u; modalities that `u` leaves out count as zero."""
        self.products += 1
        return self._pull(_hidden_to_zero(u, self.output_masks), create_graph=False)

    def push(self, v: State) -> State:
        """D v = d <D^T u, v> / du, since D^T u is linear in u: two walks backwards make one forwards."""
        self.products += 1
        if self._cotangents is None:
            self._cotangents = {name: torch.zeros_like(x, requires_grad=True) for name, x in self.outputs.items()}
            self._pulled = self._pull(self._cotangents, create_graph=True)
        v = _hidden_to_zero(v, self.variable_masks)
        named = [name for name in v if self._pulled[name].requires_grad]
        if not named:
            return {name: torch.zeros_like(x) for name, x in self.outputs.items()}
        pushed = torch.autograd.grad(
            [self._pulled[name] for name in named],
            list(self._cotangents.values()),
            [v[name] for name in named],
            retain_graph=True,
            materialize_grads=True,
        )
        return _hidden_to_zero(dict(zip(self.outputs, pushed, strict=True)), self.output_masks)

    def _pull(self, u: State, *, create_graph: bool) -> State:
        named = [name for name in u if self.outputs[name].requires_grad]
        if not named:  # a constant map
            return {name: torch.zeros_like(x) for name, x in self.variables.items()}
        with torch.enable_grad():
            pulled = torch.autograd.grad(
                [self.outputs[name] for name in named],
                list(self.variables.values()),
                [u[name] for name in named],
                create_graph=create_graph,
                retain_graph=True,
                materialize_grads=True,
            )
        return _hidden_to_zero(dict(zip(self.variables, pulled, strict=True)), self.variable_masks)


def jacobian(operator: Any, solution: Solution) -> Derivative:
    """J = dT/dz of the undamped map at the read state."""
    state = _variables(solution.state)
    return Derivative(_image(operator, state, solution.inputs), state, solution.masks, solution.masks)


def source_jacobian(operator: Any, solution: Solution, sources: Sources) -> Derivative:
    """dT/du at the read state, u what the modalities bring in."""
    values = _variables(sources.values)
    image = _image(operator, detach(solution.state), lambda: sources.rebuild(values))
    return Derivative(image, values, solution.masks, sources.masks)


def one_sample(solution: Solution, row: int) -> Solution:
    """The solution of a single sample, as a batch of one, without its graph."""
    return some_samples(solution, [row])


def some_samples(solution: Solution, chosen: Sequence[int]) -> Solution:
    """The solution of the given samples, without its graph."""
    rows = torch.tensor(list(chosen), dtype=torch.long, device=solution.steps.device)
    solution = solution.detach()
    return Solution(
        state=take_rows(solution.state, rows),
        residuals={name: each[:, rows] for name, each in solution.residuals.items()},
        steps=solution.steps[rows],
        stop_codes=solution.stop_codes[rows],
        inputs=take_rows(solution.inputs, rows),
        masks=take_rows(dict(solution.masks), rows),
        operator=solution.operator,
        solver=solution.solver,
    )


Product = Callable[[np.ndarray], np.ndarray]
RESTARTS = 100
"""Budget of ARPACK: about twenty products each."""


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
    def of(cls, operator: Any, sample: Solution, *, damping: float = 1.0) -> Matrix:
        """J of one sample."""
        entries = Entries(sample.state, sample.masks)
        return cls(jacobian(operator, sample), entries, entries, damping=damping)

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

    def formed(self) -> Formed:
        """The same map with its matrix at hand."""
        return Formed(self)

    def formed_if_small(self) -> Matrix:
        """The same map, its matrix at hand where forming it is cheaper than the hundreds of products to come."""
        return self.formed() if self.rows.size <= FORM_LIMIT else self

    def _damped(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return after if self.damping == 1 else (1 - self.damping) * before.ravel() + self.damping * after


class Formed(Matrix):
    """A linear map that is stored as a matrix."""

    def __init__(self, source: Matrix) -> None:
        super().__init__(source.derivative, source.rows, source.columns, damping=source.damping)
        self.matrix = source.dense()

    def push(self, v: np.ndarray) -> np.ndarray:
        return self.matrix @ v.ravel()

    def pull(self, u: np.ndarray) -> np.ndarray:
        return self.matrix.T @ u.ravel()

    def dense(self) -> np.ndarray:
        return self.matrix


class Inverse:
    """(I - J)^-1 as products: by its factors where J is stored, by GMRES otherwise."""

    def __init__(self, matrix: Matrix, *, tol: float, budget: int = 300) -> None:
        self.matrix, self.tol, self.budget = matrix, tol, budget
        self.singular = False
        """I - J has no inverse that this precision can tell; known beforehand only where J is stored."""
        self.residual = 0.0
        """The largest relative residual of all solves so far."""
        self.factors: Any = None
        if isinstance(matrix, Formed):
            from scipy.linalg import lu_factor

            whole = np.eye(matrix.rows.size) - matrix.matrix
            self.singular = matrix.rows.size > 0 and 1 / np.linalg.cond(whole) < 10 * precision(matrix.rows.like)
            self.factors = None if self.singular else lu_factor(whole)

    def push(self, v: np.ndarray) -> np.ndarray:
        return self._solved(lambda x: x - self.matrix.push(x), v, transposed=False)

    def pull(self, u: np.ndarray) -> np.ndarray:
        return self._solved(lambda x: x - self.matrix.pull(x), u, transposed=True)

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


def _variables(state: State) -> State:
    if torch.is_inference_mode_enabled():
        raise RuntimeError("the analysis differentiates T, which inference_mode forbids: use torch.no_grad()")
    return {name: x.detach().clone().requires_grad_() for name, x in state.items()}


def _image(operator: Any, state: State, inputs: Any) -> State:
    """T(z) with a graph that can be differentiated twice, which fused attention's cannot."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        return evaluate(operator, state, inputs() if callable(inputs) else inputs)


def _hidden_to_zero(state: State, masks: Masks) -> State:
    return {name: x.masked_fill(~per_sample(masks[name], x), 0) if name in masks else x for name, x in state.items()}


FORM_LIMIT = 1024
"""Up to this many entries a Jacobian is stored where hundreds of products with it or its inverse are to come."""
SMALL = 64
"""A matrix of at most this many columns is formed from its products: nothing is saved below that."""


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
