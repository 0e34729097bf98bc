"""Krylov spaces that several samples grow together, against what LAPACK says of the matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from meq.analysis.krylov import Spaces, solve_together

ROUNDING = float(np.finfo(float).eps)


def drawn(samples: int, size: int, *, radius: float = 0.9) -> Tensor:
    """Matrices of that spectral radius."""
    found = torch.randn(samples, size, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return found * radius / torch.linalg.eigvals(found).abs().amax(1)[:, None, None]


def product_with(matrices: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda vectors: torch.bmm(matrices, vectors[..., None])[..., 0]


def start(samples: int, size: int) -> Tensor:
    return torch.randn(samples, size, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def moduli(values: np.ndarray) -> list[float]:
    return sorted(np.abs(values).round(8), reverse=True)


@pytest.mark.parametrize("damping", [1.0, 0.3])
def test_a_whole_space_has_the_eigenvalues_of_its_matrix_at_every_damping(damping: float) -> None:
    matrices = drawn(3, 30)
    spaces = Spaces(product_with(matrices), start(3, 30), 30, ROUNDING)
    spaces.grow(30)
    for sample, matrix in enumerate(matrices):
        values, vectors = spaces.pairs(sample, count=4, tol=1e-9, damping=damping)
        damped = (1 - damping) * np.eye(30) + damping * matrix.numpy()
        assert moduli(values) == pytest.approx(moduli(np.linalg.eigvals(damped))[:4])
        assert np.abs(damped @ vectors - vectors * values).max() < 1e-9


def test_pairs_that_have_not_settled_yet_are_not_given() -> None:
    spaces = Spaces(product_with(drawn(1, 60)), start(1, 60), 60, ROUNDING)
    spaces.grow(5)
    assert spaces.pairs(0, count=1, tol=1e-9, damping=1.0) is None
    assert not spaces.grow(5), "it has so many already"


def test_a_space_that_is_all_there_is_ends_by_itself_and_leaves_the_others_alone() -> None:
    small = torch.zeros(20, 20, dtype=torch.float64)
    small[:2, :2] = torch.tensor([[0.5, 0.2], [0.0, 0.4]], dtype=torch.float64)
    matrices = torch.stack([small, drawn(1, 20)[0]])
    first = start(2, 20)
    first[0, 2:] = 0
    spaces = Spaces(product_with(matrices), first, 20, ROUNDING)
    spaces.grow(12)
    assert [spaces.dimension(0), spaces.dimension(1)] == [2, 12]
    values, _ = spaces.pairs(0, count=2, tol=1e-12, damping=1.0)
    assert moduli(values) == [0.5, 0.4]
    assert spaces.pairs(0, count=3, tol=1e-12, damping=1.0) is None


@pytest.mark.parametrize("budget", [40, 400])
def test_solves_agree_with_lapack_and_say_what_they_left(budget: int) -> None:
    matrices, b = drawn(4, 120, radius=0.95), start(4, 120)
    b[2] = 0
    asked: list[int] = []

    def product_of(open_: Sequence[int]) -> Callable[[Tensor], Tensor]:
        asked.append(len(open_))
        return product_with(matrices[list(open_)])

    x, left = solve_together(product_of, b, tol=1e-10, budget=budget, rounding=ROUNDING)
    truth = torch.linalg.solve(torch.eye(120, dtype=torch.float64) - matrices, b[..., None])[..., 0]
    residual = (b - (x - product_with(matrices)(x))).norm(dim=1) / b.norm(dim=1).clamp(min=1e-300)
    torch.testing.assert_close(left, residual, rtol=1e-6, atol=1e-12)
    assert asked[0] == 3, "a sample without a right hand side is no work"
    assert (x[2] == 0).all()
    if budget == 400:
        torch.testing.assert_close(x, truth, rtol=1e-6, atol=1e-7)
    else:
        assert left.max() > 1e-10
