"""The spectral radius of the coupled map, as an eigenvalue modulus."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from meq.core.operator import Operator, evaluate
from meq.core.options import checked_options
from meq.core.solution import Solution
from meq.core.state import per_sample, take_rows

DENSE_LIMIT = 64
"""Up to this many state entries the Jacobian is formed: Arnoldi needs room, and nothing is saved below it."""
FALLBACK_LIMIT = 1024
"""Up to this many it is formed where Arnoldi fails, as it does on a large rotation, whose moduli are all the same."""
RESTARTS = 100
"""Arnoldi's budget: about twenty products with the Jacobian each."""


@checked_options
def spectral_radius(operator: Operator, solution: Solution, *, tol: float = 1e-6) -> Float[Tensor, " B"]:
    """max |lambda(J)| per sample, J = dT/dz of the undamped map at the read state, over the real tokens.

    By Arnoldi, so complex and +- pairs, the normal case for coupled states, come out right. A Rayleigh quotient would
    say 0 for a rotation. `tol` is the relative accuracy asked of the eigenvalue. NaN for a sample without real tokens,
    and, with a warning, where the eigenvalues are too crowded to be told apart.
    """
    rows = torch.arange(len(solution.steps), device=solution.steps.device).split(1)
    radii = [_largest_modulus(_TransposedJacobian(operator, solution, row), tol) for row in rows]
    for sample in [k for k, radius in enumerate(radii) if radius is None]:
        warnings.warn(
            f"the spectral radius of sample {sample} was not found in {RESTARTS} restarts of Arnoldi, because its "
            "largest eigenvalues are too close in modulus: it is reported as NaN; a larger tol may find it",
            RuntimeWarning,
            stacklevel=3,
        )
    radii = [math.nan if radius is None else radius for radius in radii]
    return torch.tensor(radii, dtype=next(iter(solution.state.values())).dtype, device=solution.steps.device)


class _TransposedJacobian:
    """v -> J^T v of one sample on its real entries. J^T has J's eigenvalues, and one graph serves every product."""

    def __init__(self, operator: Operator, solution: Solution, row: Int[Tensor, " 1"]) -> None:
        state = take_rows(solution.state, row)
        masks = take_rows(dict(solution.masks), row)
        self.state = {name: z.detach().requires_grad_() for name, z in state.items()}
        with torch.enable_grad():
            self.image = evaluate(operator, self.state, take_rows(solution.inputs, row))
        self.real = {
            name: per_sample(masks[name], z).expand_as(z) if name in masks else torch.ones_like(z, dtype=torch.bool)
            for name, z in state.items()
        }
        self.size = sum(int(real.sum()) for real in self.real.values())

    def __call__(self, flat: np.ndarray) -> np.ndarray:
        pieces = torch.from_numpy(np.ascontiguousarray(flat.ravel())).split([int(r.sum()) for r in self.real.values()])
        vector = [
            torch.zeros_like(z).masked_scatter_(self.real[name], piece.to(z))
            for (name, z), piece in zip(self.state.items(), pieces, strict=True)
        ]
        image = [self.image[name] for name in self.state]
        pulled = torch.autograd.grad(
            image, list(self.state.values()), vector, retain_graph=True, materialize_grads=True
        )
        flat_parts = [x[real] for x, real in zip(pulled, self.real.values(), strict=True)]
        return torch.cat(flat_parts).double().cpu().numpy()


def _largest_modulus(product: _TransposedJacobian, tol: float) -> float | None:
    """The modulus of the largest eigenvalue, or None if it was not found."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs  # on use: importing meq stays light

    if product.size == 0:
        return math.nan  # a sample without any real token has no map
    if product.size <= DENSE_LIMIT:
        return _dense_modulus(product)
    start = np.random.default_rng(0).standard_normal(product.size)  # ARPACK would draw from global state
    if not product(start).any():
        return 0.0  # a map that ignores its state, of which ARPACK would make an error
    linear = LinearOperator((product.size, product.size), matvec=product, dtype=np.float64)
    try:
        found = eigs(linear, k=1, which="LM", v0=start, tol=tol, maxiter=RESTARTS, return_eigenvectors=False)
    except ArpackError:
        return _dense_modulus(product) if product.size <= FALLBACK_LIMIT else None
    return float(np.abs(found).max())


def _dense_modulus(product: _TransposedJacobian) -> float:
    dense = np.stack([product(column) for column in np.eye(product.size)], axis=1)
    return float(np.abs(np.linalg.eigvals(dense)).max())
