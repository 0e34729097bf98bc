"""Derivatives of an operator at a solution: products in both directions, for a batch or for one sample as a matrix.

`Derivative` works on states, all samples at once. `Matrix` is one sample's derivative over its real entries, as flat
vectors: what eigenvalues, inverses and operator norms are computed from.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from meq.analysis.krylov import MOST_BYTES, USUAL, Together, solve_together
from meq.core.operator import Inputs, evaluate
from meq.core.solution import Solution
from meq.core.state import Masks, State, detach, per_sample, take_rows

Product = Callable[[np.ndarray], np.ndarray]
RESTARTS = 100
"""Budget of ARPACK: about twenty products each."""
FORM_LIMIT = 2048
"""Up to this many entries a Jacobian is formed where its eigenvalues cannot be told from products."""
FORM_EARLY = 512
"""Up to this many it is stored before hundreds of products with it or its inverse."""
SMALL = 64
"""A matrix of at most this many columns is formed from its products: nothing is saved below that."""


@dataclass(frozen=True, eq=False)
class Sources:
    """Tensors by modality, and the operator's inputs made from them."""

    values: State
    rebuild: Callable[[State], Inputs]
    masks: Masks


def find_sources(operator: Any, solution: Solution) -> Sources:
    """The sources of a solution: an operator's `sources`, or inputs that are a dictionary of modalities.

    An operator whose inputs look otherwise has a method `sources(inputs) -> State` and its inverse
    `with_sources(inputs, state) -> inputs`. The models of meq do: their sources are the injections f(x).
    """
    inputs = solution.inputs
    if hasattr(operator, "sources") and hasattr(operator, "with_sources"):
        values = operator.sources(inputs)
        return Sources(detach(values), lambda new: operator.with_sources(inputs, new), _masks_of(values, solution))
    if isinstance(inputs, dict) and all(isinstance(inputs.get(name), Tensor) for name in solution.state):
        values = {name: inputs[name] for name in solution.state}
        return Sources(detach(values), lambda new: {**inputs, **new}, _masks_of(values, solution))
    raise TypeError(
        f"it is not known what the modalities bring in: give {type(operator).__name__} the methods sources(inputs) and "
        f"with_sources(inputs, sources), or inputs that are a dictionary with {sorted(solution.state)}"
    )


def _masks_of(values: State, solution: Solution) -> Masks:
    """A source is hidden where its state is, as far as their tokens correspond."""
    return {
        name: mask
        for name, mask in solution.masks.items()
        if name in values and values[name].shape[: mask.ndim] == mask.shape
    }


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
        pushed = gradients({name: self._pulled[name] for name in named}, self._cotangents, v)
        return _hidden_to_zero(dict(zip(self.outputs, pushed, strict=True)), self.output_masks)

    def _pull(self, u: State, *, create_graph: bool) -> State:
        named = [name for name in u if self.outputs[name].requires_grad]
        if not named:  # a constant map
            return {name: torch.zeros_like(x) for name, x in self.variables.items()}
        pulled = gradients({name: self.outputs[name] for name in named}, self.variables, u, create_graph=create_graph)
        return _hidden_to_zero(dict(zip(self.variables, pulled, strict=True)), self.variable_masks)


def gradients(outputs: State, variables: State, weights: State, *, create_graph: bool = False) -> tuple[Tensor, ...]:
    """d <outputs, weights> / d variables. The graph stays.

    Of the sum, and not by giving torch the weights: it would import sympy to compare their shapes, every time anew.
    """
    with torch.enable_grad():
        total = torch.stack([(x * weights[name]).sum() for name, x in outputs.items()]).sum()
        return torch.autograd.grad(
            total, list(variables.values()), create_graph=create_graph, retain_graph=True, materialize_grads=True
        )


def jacobian(operator: Any, solution: Solution, *, fused: bool = False) -> Derivative:
    """J = dT/dz of the undamped map at the read state; `fused` for `pull` alone, whose walks it makes shorter."""
    state = _variables(solution.state)
    return Derivative(_image(operator, state, solution.inputs, fused=fused), state, solution.masks, solution.masks)


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


def _variables(state: State) -> State:
    if torch.is_inference_mode_enabled():
        raise RuntimeError("the analysis differentiates T, which inference_mode forbids: use torch.no_grad()")
    return {name: x.detach().clone().requires_grad_() for name, x in state.items()}


def _image(operator: Any, state: State, inputs: Any, *, fused: bool = False) -> State:
    """T(z) with a graph that can be differentiated twice, which `fused` attention's cannot."""
    with torch.enable_grad(), nullcontext() if fused else sdpa_kernel(SDPBackend.MATH):
        return evaluate(operator, state, inputs() if callable(inputs) else inputs)


def _hidden_to_zero(state: State, masks: Masks) -> State:
    return {name: x.masked_fill(~per_sample(masks[name], x), 0) if name in masks else x for name, x in state.items()}


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


class LinearMap(ABC):
    """A linear map between flat vectors, known by its products with them and with its transpose."""

    shape: tuple[int, int]

    @abstractmethod
    def push(self, v: np.ndarray) -> np.ndarray:
        """A v"""

    @abstractmethod
    def pull(self, u: np.ndarray) -> np.ndarray:
        """A^T u"""

    def block(self, rows: np.ndarray, columns: np.ndarray) -> LinearMap:
        """The part with these rows and columns."""
        height, width = self.shape
        return _Products(
            lambda v: self.push(placed(v, columns, width))[rows],
            lambda u: self.pull(placed(u, rows, height))[columns],
            (len(rows), len(columns)),
        )

    def after(self, first: LinearMap) -> LinearMap:
        """A B: first B, then this."""
        return _Products(
            lambda v: self.push(first.push(v)), lambda u: first.pull(self.pull(u)), (self.shape[0], first.shape[1])
        )

    def norm(self, *, tol: float, exact: bool = False) -> float:
        """|A|, the operator norm: the largest singular value."""
        return self.most_stretched(tol=tol, exact=exact)[0]

    def most_stretched(self, *, tol: float, exact: bool = False) -> tuple[float, np.ndarray]:
        """|A| and the unit vector v that A stretches most, from products with A^T A; `exact` forms the matrix.

        A^T A is symmetric, so rotations cannot fool it. By Lanczos, which is power iteration that remembers its path:
        the largest singular values of a coupled map lie close together, where plain power iteration stalls below them.
        """
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh  # on use: importing meq stays light

        size = self.shape[1]
        if size == 0:
            return 0.0, np.zeros(0)
        if exact or size <= SMALL:
            _, values, rights = np.linalg.svd(np.stack([self.push(unit) for unit in np.eye(size)], axis=1))
            return (float(values[0]), rights[0]) if len(values) else (0.0, np.eye(size)[0])
        start = np.random.default_rng(0).standard_normal(size)
        if not self.pull(self.push(start)).any():
            return 0.0, start / np.linalg.norm(start)
        squared = LinearOperator((size, size), matvec=lambda v: self.pull(self.push(v)), dtype=np.float64)
        try:
            values, vectors = eigsh(squared, k=1, v0=start, tol=tol, maxiter=RESTARTS)
        except ArpackNoConvergence as error:
            raise ArithmeticError(
                f"an operator norm was not found to {tol:g} in {RESTARTS} restarts of Lanczos; a larger tol may find it"
            ) from error
        return float(max(values[0], 0.0) ** 0.5), vectors[:, 0]


class _Products(LinearMap):
    """A map that is given by its two products."""

    def __init__(self, push: Product, pull: Product, shape: tuple[int, int]) -> None:
        self._push, self._pull, self.shape = push, pull, shape

    def push(self, v: np.ndarray) -> np.ndarray:
        return self._push(v)

    def pull(self, u: np.ndarray) -> np.ndarray:
        return self._pull(u)


def placed(values: np.ndarray, where: np.ndarray, size: int) -> np.ndarray:
    """A vector that is zero but for the values, at their places."""
    whole = np.zeros(size)
    whole[where] = values.ravel()
    return whole


class Matrix(LinearMap):
    """One sample's derivative D over its real entries; `damping` d makes it (1 - d) I + d D.

    Its products are those of the derivative, or of the matrix itself where that is `stored`. `among` are the samples
    that it is looked at with, and its place there: they share the work of eigenvalues and of solves.
    """

    def __init__(
        self,
        derivative: Derivative,
        rows: Entries,
        columns: Entries,
        *,
        damping: float = 1.0,
        stored: np.ndarray | None = None,
        among: tuple[Together, int] | None = None,
    ) -> None:
        self.derivative, self.rows, self.columns = derivative, rows, columns
        self.damping, self.stored, self.among = damping, stored, among
        self.shape = rows.size, columns.size

    @classmethod
    def of(cls, operator: Any, sample: Solution, *, among: tuple[Together, int] | None = None) -> Matrix:
        """J of one sample."""
        entries = Entries(sample.state, sample.masks)
        return cls(jacobian(operator, sample), entries, entries, among=among)

    @classmethod
    def of_sources(cls, operator: Any, sample: Solution, sources: Sources) -> Matrix:
        """dT/du of one sample."""
        rows, columns = Entries(sample.state, sample.masks), Entries(sources.values, sources.masks)
        return cls(source_jacobian(operator, sample, sources), rows, columns)

    @property
    def products(self) -> int:
        return self.derivative.products + (0 if self.among is None else self.among[0].products)

    def push(self, v: np.ndarray) -> np.ndarray:
        if self.stored is not None:
            return self.stored @ v.ravel()
        return self._damped(v, self.rows.flat(self.derivative.push(self.columns.state(v))))

    def pull(self, u: np.ndarray) -> np.ndarray:
        if self.stored is not None:
            return self.stored.T @ u.ravel()
        return self._damped(u, self.columns.flat(self.derivative.pull(self.rows.state(u))))

    def dense(self) -> np.ndarray:
        """The matrix itself, a row per product."""
        if self.stored is not None:
            return self.stored
        rows = [self.pull(unit) for unit in np.eye(self.rows.size)]
        return np.stack(rows) if rows else np.zeros((0, self.columns.size))

    def damped(self, damping: float) -> Matrix:
        """(1 - d) I + d D"""
        stored = self.stored
        if stored is not None:
            stored = (1 - damping) * np.eye(len(stored)) + damping * stored
        return Matrix(self.derivative, self.rows, self.columns, damping=damping, stored=stored, among=self.among)

    def formed(self, *, exact: bool = True) -> Matrix:
        """The same map, its matrix stored; unless `exact`, only where that is cheaper than hundreds of products."""
        if not exact and self.rows.size > FORM_EARLY:
            return self
        return Matrix(self.derivative, self.rows, self.columns, damping=self.damping, stored=self.dense())

    def _damped(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return after if self.damping == 1 else (1 - self.damping) * before.ravel() + self.damping * after


def jacobians(operator: Any, solution: Solution) -> Iterator[Matrix]:
    """J of every sample, one after the other; what is asked of one of them is found for all."""
    solution = solution.detach()
    together = Together(partial(jacobian, operator), solution)
    for row in range(len(solution.steps)):
        yield Matrix.of(operator, one_sample(solution, row), among=(together, row))


class Inverse(LinearMap):
    """(I - J)^-1 as products: by its factors where J is stored, by GMRES otherwise.

    `within` restricts J to a block on its diagonal, given by the places of its entries.
    """

    def __init__(self, matrix: Matrix, *, tol: float, within: np.ndarray | None = None, budget: int = 300) -> None:
        self.tol, self.budget = tol, budget
        places = np.arange(matrix.rows.size) if within is None else within
        self.inverted = matrix.block(places, places)
        self.shape = self.inverted.shape
        self.singular = False
        """I - J has no inverse that this precision can tell; known beforehand only where J is stored."""
        self.residual = 0.0
        """The largest relative residual of all solves so far."""
        self.factors: Any = None
        if matrix.stored is not None and len(places):
            block = matrix.stored[np.ix_(places, places)]
            self.factors, smallest = _factored(np.eye(len(places)) - block)
            self.singular = smallest < 10 * precision(matrix.rows.like)  # the rounding of J itself, next to I

    def push(self, v: np.ndarray) -> np.ndarray:
        return self._solved(lambda x: x - self.inverted.push(x), v, transposed=False)

    def pull(self, u: np.ndarray) -> np.ndarray:
        return self._solved(lambda x: x - self.inverted.pull(x), u, transposed=True)

    def _solved(self, product: Product, b: np.ndarray, *, transposed: bool) -> np.ndarray:
        if self.singular:
            x, residual = np.full_like(b, np.nan), np.inf
        elif self.factors is None:
            x, residual = solve_linear(product, b, tol=self.tol, budget=self.budget)
        else:
            from scipy.linalg import lu_solve

            x, size = lu_solve(self.factors, b.ravel(), trans=1 if transposed else 0), float(np.linalg.norm(b))
            residual = float(np.linalg.norm(b.ravel() - product(x)) / size) if size else 0.0
        self.residual = max(self.residual, residual)
        return x


def pull_inverse(
    matrices: Sequence[Matrix], wanted: Sequence[tuple[int, np.ndarray]], *, tol: float, budget: int = 300
) -> tuple[list[np.ndarray], list[float]]:
    """u^T (I - J)^-1 for pairs of a sample's place and a vector u, all at once; and the residuals of the solves.

    The matrices are all that `jacobians` gave, undamped and not stored.
    """
    answers: list[np.ndarray] = []
    residuals: list[float] = []
    places = [matrix.among for matrix in matrices]
    assert places[0] is not None
    together = places[0][0]
    at_once = max(1, MOST_BYTES // (8 * USUAL * max(1, together.size)))
    for start in range(0, len(wanted), at_once):
        part = wanted[start : start + at_once]
        rows = [row for row, _ in part]
        real = together.real[rows]
        right = torch.zeros(real.shape, dtype=torch.float64)
        for place, (_, u) in enumerate(part):
            right[place, real[place]] = torch.from_numpy(u)

        def product_of(open_: Sequence[int], rows: list[int] = rows) -> Callable[[Tensor], Tensor]:
            few = some_samples(together.solution, [rows[place] for place in open_])
            return Together(together.differentiate, few).pull

        found, left = solve_together(product_of, right, tol=tol, budget=budget, rounding=together.rounding)
        answers += [x[mask].numpy() for x, mask in zip(found, real, strict=True)]
        residuals += left.tolist()
    return answers, residuals


def _factored(whole: np.ndarray) -> tuple[Any, float]:
    """LU factors, and LAPACK's estimate of 1 / |A^-1|, which costs far less than the smallest singular value would."""
    from scipy.linalg import LinAlgWarning, lapack, lu_factor

    with warnings.catch_warnings():  # a singular matrix is an answer here, and the estimate says so
        warnings.simplefilter("ignore", LinAlgWarning)
        factors = lu_factor(whole)
    size = np.linalg.norm(whole, 1)
    return factors, float(size * lapack.dgecon(factors[0], size)[0])


def solve_linear(product: Product, b: np.ndarray, *, tol: float, budget: int) -> tuple[np.ndarray, float]:
    """x with A x = b by GMRES, A known by its products, and |b - A x| / |b|, which is not GMRES's own estimate."""
    from scipy.sparse.linalg import LinearOperator, gmres  # on use: importing meq stays light

    size = float(np.linalg.norm(b))
    if size == 0:
        return np.zeros_like(b), 0.0
    matrix = LinearOperator((len(b), len(b)), matvec=product, dtype=np.float64)
    restart = min(len(b), 50, budget)
    x, _ = gmres(matrix, b, rtol=tol, atol=0.0, restart=restart, maxiter=max(1, budget // restart))
    return x, float(np.linalg.norm(b - product(x)) / size)


def precision(state: State) -> float:
    """The relative rounding error of the coarsest of a state's dtypes."""
    return max(torch.finfo(x.dtype).eps for x in state.values())


def reachable_tolerance(state: State) -> float:
    """A relative residual that products in this precision can reach."""
    coarsest = precision(state)
    return 1e-10 if coarsest < 1e-12 else 50 * coarsest
