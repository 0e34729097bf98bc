"""The spectral radius of several samples at once, for looks that come often: their Krylov spaces grow in step."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.krylov import Spaces, Together
from meq.analysis.products import jacobian, some_samples
from meq.analysis.spectrum import UNCERTAIN, by_modulus, leading_eigenvalue
from meq.analysis.tables import column
from meq.core.solution import Solution
from meq.options import checked_options

MOST_STEPS = 100
"""A sample that is still open then is handed to `leading_eigenvalue`."""
NORMAL = 10.0
"""A condition above this, within the space, is that of a map far from normal, and the whole one may be far larger."""
EVERY = 4
"""Steps between looks at the eigenvalues that have come out so far."""


@checked_options
def radii(operator: Any, solution: Solution, *, tol: float = UNCERTAIN) -> Float[Tensor, " B"]:
    """max |lambda(J)| per sample, J = dT/dz of the undamped map at the read state; NaN without real tokens.

    A walk along the graph costs hardly more for a few samples than for one, so that each of them has a Krylov space and
    every walk is a step of all. `tol` is the residual asked of the eigenpair, relative to the eigenvalue, and it is
    tightened where the eigenvalue's condition calls for it. J is seen from one side only: the condition is that within
    the space that was looked at. A sample for which that is not enough, since its map is far from normal or its
    eigenvalues are crowded, gets what `leading_eigenvalue` finds, which looks from both sides.
    """
    together = Together(partial(jacobian, operator, fused=True), solution)
    sizes = together.real.sum(1).tolist()
    spaces = Spaces(together.pull, _starts(together), min(MOST_STEPS, max(sizes)), together.rounding)
    found: dict[int, float] = {row: math.nan for row, size in enumerate(sizes) if size == 0}
    open_ = [row for row in range(len(sizes)) if row not in found]
    hard = []
    while open_ and spaces.grow(spaces.size + EVERY):
        for row in list(open_):
            value, residual, condition = _leading(spaces, row)
            error = condition * max(residual, together.rounding * value)
            if residual <= tol * value and error <= UNCERTAIN * value:
                open_.remove(row)
                found[row] = value
                hard += [row] if condition > NORMAL else []
    if hard := sorted(hard + open_):
        careful = leading_eigenvalue(operator, some_samples(solution, hard), tol=tol, norms=False).radius
        found |= dict(zip(hard, careful.tolist(), strict=True))
    return column(found[row] for row in range(len(sizes)))


def _starts(together: Together) -> Float[Tensor, "B N"]:
    """Drawn for the real entries, so that a sample's numbers do not depend on how far it was padded."""
    starts = torch.zeros(together.real.shape, dtype=together.dtype)
    for start, real in zip(starts, together.real, strict=True):
        start[real] = torch.from_numpy(np.random.default_rng(0).standard_normal(int(real.sum()))).to(start)
    return starts


def _leading(spaces: Spaces, row: int) -> tuple[float, float, float]:
    """The largest modulus so far of a sample, its pair's residual and its condition within the space."""
    count = spaces.dimension(row)
    # by numpy: scipy, which would give both sides' vectors, takes longer to import than a small run to be looked at
    values, vectors = np.linalg.eig(spaces.coefficients[row, :count, :count])
    first = by_modulus(values)[0]
    residual = float(spaces.coefficients[row, count, count - 1]) * float(abs(vectors[-1, first]))
    return float(abs(values[first])), residual, _condition(vectors, first)


def _condition(vectors: np.ndarray, place: int) -> float:
    """|v| |x| / |v^T x| of one of the unit eigenvectors x and its vector v of the other side, at right angles to all
    others; infinite where they do not span the space."""
    try:
        return float(np.linalg.norm(np.linalg.solve(vectors.T, np.eye(len(vectors))[place])))
    except np.linalg.LinAlgError:
        return math.inf
