from __future__ import annotations

import math

import pytest
import torch
from problems import Affine, known

import meq
from meq.analysis.spectrum import leading_eigenvalues

MODULI = torch.tensor([0.9, 0.8, 0.7, 0.5], dtype=torch.float64)


def rotations(angle: float, moduli: torch.Tensor) -> torch.Tensor:
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    return torch.block_diag(*[modulus * turn for modulus in moduli])


def solved(matrix: torch.Tensor, shapes: dict[str, tuple[int, ...]], batch: int = 2) -> tuple[Affine, meq.Solution]:
    problem = known(matrix, shapes, batch=batch)
    return problem.operator, meq.solve(problem.operator, problem.inputs, steps=3, tol=0.0)


@pytest.mark.parametrize("more", [0, 60], ids=["dense", "arnoldi"])
def test_they_are_the_largest_of_the_matrix_in_order(more: int) -> None:
    moduli = torch.cat([MODULI, torch.linspace(0.3, 0.1, more, dtype=torch.float64)])
    operator, solution = solved(rotations(1.1, moduli), {"a": (4,), "b": (2 * len(moduli) - 4,)})
    found = leading_eigenvalues(operator, solution, count=6, tol=1e-9)
    assert found.values.shape == (2, 6)
    torch.testing.assert_close(found.values.abs()[0], MODULI[:3].repeat_interleave(2), rtol=1e-6, atol=0)
    assert float(found.values[0, 0].angle()) == pytest.approx(1.1)
    assert float(found.residual.max()) < 1e-6
    assert int(found.products.min()) > 0
    assert len(str(found).splitlines()) == 7


def test_the_damped_ones_are_those_of_the_damped_map() -> None:
    matrix = rotations(2.0, MODULI)
    found = leading_eigenvalues(*solved(matrix, {"a": (8,)}), count=8)
    damped = torch.linalg.eigvals(0.4 * torch.eye(8, dtype=torch.float64) + 0.6 * matrix)
    torch.testing.assert_close(found.damped(0.6)[0].abs().sort().values, damped.abs().sort().values)


def test_there_are_no_more_than_the_state_has_entries() -> None:
    found = leading_eigenvalues(*solved(0.5 * torch.eye(2, dtype=torch.float64), {"a": (2,)}), count=4)
    assert found.values.abs()[0, :2].tolist() == pytest.approx([0.5, 0.5])
    assert bool(found.values[0, 2:].isnan().all())


def test_a_map_that_ignores_its_state_has_zeros() -> None:
    found = leading_eigenvalues(*solved(torch.zeros(80, 80, dtype=torch.float64), {"a": (80,)}), count=3)
    assert found.values.abs().max() == 0


def test_none_at_all_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        leading_eigenvalues(*solved(torch.eye(2).double() / 2, {"a": (2,)}), count=0)
