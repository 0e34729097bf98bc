"""Krylov spaces of several samples' Jacobians, grown in step: one product with all of them serves every sample.

K_m(J, v) = span(v, J v, ..., J^(m-1) v), with an orthonormal basis V and the small matrix H of J V_m = V_(m+1) H. The
eigenvalues of H are those of J as far as the space has found them; x - J x = b is solved in it by least squares
(GMRES). The space of (1 - d) I + d J is the same one, so one space serves every damping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from meq.core.solution import Solution
from meq.core.state import State, per_sample

if TYPE_CHECKING:
    from meq.analysis.products import Derivative

Product = Callable[[Tensor], Tensor]
MOST = 300
"""Vectors of a basis."""
MOST_BYTES = 2**28
"""Of all bases together; where that is not enough for `FEWEST`, there is no space."""
USUAL = 50
"""Vectors of a basis after which a solve is begun anew with what is left."""
FEWEST, GROWTH = 20, 10
"""Eigenvalues are looked for in so many vectors, or in two for every pair that is asked for, or in more; a solve looks
where it is every so many."""
BREAKDOWN = 4.0
"""A new direction shorter than this many roundings is none: the space is all there is."""


class Together:
    """The Jacobians of several samples over all their entries, those that are hidden as zeros, for common products."""

    def __init__(self, differentiate: Callable[[Solution], Derivative], solution: Solution) -> None:
        self.differentiate, self.samples = differentiate, len(solution.steps)
        self.shapes = {name: x.shape[1:] for name, x in solution.state.items()}
        self.ends = np.cumsum([shape.numel() for shape in self.shapes.values()]).tolist()
        self.size = self.ends[-1] if self.ends else 0
        self.solution = solution
        self._spaces: dict[bool, Spaces] = {}

    @cached_property
    def derivative(self) -> Derivative:
        return self.differentiate(self.solution)

    @cached_property
    def real(self) -> Tensor:
        """Which entries are no padding, per sample."""
        masks, state = self.solution.masks, self.solution.state
        parts = [
            per_sample(masks[name], x).expand_as(x) if name in masks else torch.ones_like(x, dtype=torch.bool)
            for name, x in state.items()
        ]
        return torch.cat([part.reshape(self.samples, -1) for part in parts], dim=1).cpu()

    @property
    def products(self) -> int:
        """Of every sample."""
        return self.derivative.products if "derivative" in vars(self) else 0

    @property
    def limit(self) -> int:
        """The most vectors that a basis may have here."""
        return min(MOST, MOST_BYTES // (8 * max(1, self.samples * self.size)))

    def pull(self, vectors: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """J^T u of every sample."""
        return self._flat(self.derivative.pull(self._state(vectors)))

    def push(self, vectors: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """J v of every sample."""
        return self._flat(self.derivative.push(self._state(vectors)))

    def leading(
        self, sample: int, *, transposed: bool, count: int, tol: float, damping: float
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The `count` eigenvalues of largest modulus of (1 - d) I + d J, or of its transpose, and unit vectors.

        None where the space may not grow as far as it takes.
        """
        needed = max(FEWEST, 2 * count + 1)
        if self.limit < needed:
            return None
        if transposed not in self._spaces:
            generator = torch.Generator().manual_seed(0)
            starts = torch.randn(self.samples, self.size, generator=generator, dtype=self.dtype) * self.real
            self._spaces[transposed] = Spaces(self.pull if transposed else self.push, starts, self.limit, self.rounding)
        spaces = self._spaces[transposed]
        spaces.grow(needed)
        while spaces.size >= needed:
            found = spaces.pairs(sample, count=count, tol=tol, damping=damping)
            if found is not None:
                values, vectors = found
                return values, vectors[self.real[sample].numpy()]
            if not spaces.grow(spaces.size + spaces.size // 8):  # looking costs as much as growing
                return None
        return None

    @property
    def rounding(self) -> float:
        return max(torch.finfo(x.dtype).eps for x in self.solution.state.values())

    @property
    def dtype(self) -> torch.dtype:
        return _basis_dtype(self.rounding)

    def _state(self, vectors: Tensor) -> State:
        parts = torch.tensor_split(vectors, self.ends[:-1], dim=1)
        like = self.solution.state
        return {
            name: part.reshape(len(vectors), *shape).to(like[name])
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def _flat(self, state: State) -> Tensor:
        parts = [state[name].detach().reshape(self.samples, -1) for name in self.shapes]
        return torch.cat(parts, dim=1).to("cpu", self.dtype)


class Spaces:
    """One Krylov space per sample, all of the same size; the bases in the precision of the products."""

    def __init__(self, product: Product, starts: Float[Tensor, "B N"], limit: int, rounding: float) -> None:
        self.product, self.limit, self.rounding = product, limit, rounding
        self.basis = starts.new_zeros(len(starts), 0, starts.shape[1])
        self.coefficients = np.zeros((len(starts), limit + 1, limit))
        self.lengths = starts.double().norm(dim=1)
        self.size, self._next = 0, _divided(starts, self.lengths)

    def grow(self, size: int) -> bool:
        """To so many vectors; False where they are not to be had."""
        size = min(size, self.limit)
        if size <= self.size:
            return False
        old = self.basis
        self.basis = old.new_zeros(len(old), size, old.shape[2])
        self.basis[:, : self.size] = old
        while self.size < size:
            self._step()
        return True

    def _step(self) -> None:
        at = self.size
        self.basis[:, at] = self._next
        rest = self.product(self._next)
        before = rest.norm(dim=1)
        for row, vector in enumerate(rest):
            known = self.basis[row, : at + 1]
            for _ in range(2):  # once more takes away what rounding left
                parts = known @ vector
                vector -= parts @ known
                self.coefficients[row, : at + 1, at] += parts.numpy()
        beta = rest.norm(dim=1)
        beta = beta.where(beta > BREAKDOWN * self.rounding * before, 0.0)
        self.coefficients[:, at + 1, at] = beta.numpy()
        self._next = _divided(rest, beta)
        self.size += 1

    def dimension(self, sample: int) -> int:
        """How many vectors of the basis there are; fewer than `size` where the space was all there is."""
        below = np.diagonal(self.coefficients[sample, 1 : self.size + 1, : self.size])
        ended = np.flatnonzero(below == 0)
        return int(ended[0]) + 1 if len(ended) else self.size

    def pairs(self, sample: int, *, count: int, tol: float, damping: float) -> tuple[np.ndarray, np.ndarray] | None:
        """Ritz values of largest modulus with their unit vectors; None where some are not there yet."""
        size = self.dimension(sample)
        if size < count:
            return None
        small = (1 - damping) * np.eye(size) + damping * self.coefficients[sample, :size, :size]
        values, inner = np.linalg.eig(small)
        chosen = np.argsort(-np.abs(values), kind="stable")[:count]
        missed = damping * self.coefficients[sample, size, size - 1] * np.abs(inner[-1, chosen])
        if not (missed <= tol * np.abs(values[chosen])).all():
            return None
        vectors = self.basis[sample, :size].double().numpy().T @ inner[:, chosen]
        return values[chosen], vectors / np.linalg.norm(vectors, axis=0)

    def nearest(self, sample: int) -> tuple[Tensor, float]:
        """x of the space for which x - A x comes closest to b, the start; and how far it stays from it."""
        size = self.dimension(sample)
        small = np.eye(size + 1, size) - self.coefficients[sample, : size + 1, :size]
        right = np.zeros(size + 1)
        right[0] = float(self.lengths[sample])
        q, r = np.linalg.qr(small)
        if np.abs(np.diagonal(r)).min() > np.finfo(float).eps * np.abs(r).max():
            y = np.linalg.solve(r, q.T @ right)
        else:  # x - A x = 0 for some x of the space: the shortest y is meant
            y = np.linalg.lstsq(small, right, rcond=None)[0]
        x = torch.from_numpy(y) @ self.basis[sample, :size].double()
        return x, float(np.linalg.norm(small @ y - right))


def _basis_dtype(rounding: float) -> torch.dtype:
    """That of products with this rounding, and no less than float32."""
    return torch.float64 if rounding < torch.finfo(torch.float32).eps else torch.float32


def _divided(vectors: Float[Tensor, "B N"], lengths: Float[Tensor, " B"]) -> Float[Tensor, "B N"]:
    """Each by its length; one without a length stays zero."""
    lengths = lengths.to(vectors)[:, None]
    return torch.where(lengths > 0, vectors / lengths.clamp(min=torch.finfo(vectors.dtype).tiny), 0.0)


def solve_together(
    product_of: Callable[[Sequence[int]], Product], b: Float[Tensor, "B N"], *, tol: float, budget: int, rounding: float
) -> tuple[Float[Tensor, "B N"], Float[Tensor, " B"]]:
    """x with x - A x = b of every sample, and |b - (x - A x)| / |b|: GMRES within a budget of products.

    It is begun anew with what is left after `USUAL` products, or after more where few samples are. `product_of` gives
    products with the A of some of the samples: those that are solved are left alone. A sample without a right hand side
    has the answer 0.
    """
    x, left, sizes, taken = torch.zeros_like(b), b.clone(), b.norm(dim=1), 0
    while taken < budget:
        open_ = (left.norm(dim=1) > tol * sizes).nonzero().flatten().tolist()
        if not open_:
            break
        product = product_of(open_)
        limit = min(budget - taken, USUAL * (len(b) // len(open_)))
        spaces = Spaces(product, left[open_].to(_basis_dtype(rounding)), limit, rounding)
        while spaces.grow(spaces.size + max(GROWTH, spaces.size // 5)):
            found = [spaces.nearest(row) for row in range(len(open_))]
            if all(gap <= tol * float(sizes[row]) for (_, gap), row in zip(found, open_, strict=True)):
                break
        taken += spaces.size
        x[open_] += torch.stack([step for step, _ in found])
        left[open_] = b[open_] - (x[open_] - product(x[open_]).double())
    return x, torch.where(sizes > 0, left.norm(dim=1) / sizes.clamp(min=torch.finfo(b.dtype).tiny), 0.0)
