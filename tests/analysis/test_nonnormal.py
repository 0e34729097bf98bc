"""The radius of maps far from normal: right, or said to be uncertain, with the truth inside what is said."""

from __future__ import annotations

import math

import pytest
import torch
from problems import Known, known
from torch import Tensor

import meq
from meq.analysis import eigenpairs, leading_eigenvalue, spectrum


def triangular(size: int, radius: float, above: float, seed: int = 0) -> Tensor:
    """The truth is the diagonal, whatever stands above it."""
    generator = torch.Generator().manual_seed(seed)
    moduli = radius * torch.linspace(1, 0.2, size, dtype=torch.float64)
    strict = torch.randn(size, size, generator=generator, dtype=torch.float64).triu(1)
    return moduli.diag() + above * strict


def jordan(size: int, radius: float, above: float) -> Tensor:
    return radius * torch.eye(size, dtype=torch.float64) + above * torch.ones(size - 1, dtype=torch.float64).diag(1)


def hidden(matrix: Tensor, seed: int = 1) -> Tensor:
    """The same eigenvalues in another orthonormal basis, where no structure gives them away."""
    drawn = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = torch.linalg.qr(drawn).Q
    return basis @ matrix @ basis.T


def problem(matrix: Tensor) -> tuple[Known, meq.Solution]:
    made = known(matrix, {"a": (len(matrix),)}, batch=1)
    return made, meq.solve(made.operator, made.inputs, steps=1, tol=0.0)


CASES = {
    "triangular": (triangular(100, 0.9, 1.0), 0.9),
    "jordan": (jordan(100, 0.5, 1.0), 0.5),
    "large jordan": (jordan(300, 0.9, 2.0), 0.9),
    "hidden jordan": (hidden(jordan(100, 0.5, 1.0)), 0.5),
    "hidden triangular": (hidden(triangular(100, 0.9, 1.0)), 0.9),
    "small triangular": (triangular(40, 0.9, 3.0), 0.9),
}


@pytest.mark.parametrize("case", list(CASES))
def test_the_truth_lies_between_the_bounds_of_a_map_far_from_normal(case: str) -> None:
    matrix, truth = CASES[case]
    made, solution = problem(matrix)
    found = leading_eigenvalue(made.operator, solution, norms=False)
    assert found.lowest.item() <= truth + 1e-9, str(found)
    assert truth - 1e-9 <= found.highest.item(), str(found)
    right = abs(found.radius.item() - truth) < 0.02 * truth
    assert right or "uncertain for 1 of 1, between" in str(found)


@pytest.mark.parametrize("case", ["triangular", "jordan", "large jordan", "small triangular"])
def test_a_structure_that_balancing_sees_gives_the_diagonal(case: str) -> None:
    matrix, truth = CASES[case]
    made, solution = problem(matrix)
    radius = leading_eigenvalue(made.operator, solution, norms=False).radius
    assert radius.item() == pytest.approx(truth, rel=1e-6)


def test_a_warning_names_the_sample_and_the_bounds() -> None:
    made, solution = problem(CASES["hidden jordan"][0])
    with pytest.warns(RuntimeWarning, match=r"the spectral radius of sample 0 is uncertain, between \d"):
        radius = meq.spectral_radius(made.operator, solution)
    assert radius.shape == (1,)


@pytest.mark.parametrize("limit", [4, 2048])
def test_maps_too_large_to_form_are_judged_by_vectors_of_both_sides(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eigenpairs, "FORM_LIMIT", limit)
    monkeypatch.setattr(eigenpairs, "FALLBACK_LIMIT", limit)
    for matrix, truth in (CASES["jordan"], CASES["hidden triangular"]):
        made, solution = problem(matrix)
        found = spectrum.leading_eigenvalue(made.operator, solution, norms=False)
        assert found.lowest.item() <= truth + 1e-9, str(found)
        assert truth - 1e-9 <= found.highest.item(), str(found)
        assert abs(found.radius.item() - truth) < 0.02 or "uncertain" in str(found)


def test_a_normal_map_is_certain_and_costs_two_short_walks() -> None:
    turn = torch.tensor([[math.cos(1.3), -math.sin(1.3)], [math.sin(1.3), math.cos(1.3)]], dtype=torch.float64)
    moduli = torch.linspace(0.95, 0.1, 150, dtype=torch.float64)
    made, solution = problem(torch.block_diag(*[size * turn for size in moduli]))
    found = leading_eigenvalue(made.operator, solution, norms=False)
    assert found.condition.item() == pytest.approx(1, rel=0.05)
    assert found.radius.item() == pytest.approx(0.95, rel=1e-3)
    assert found.highest.item() - found.lowest.item() < 0.02 * 0.95
    assert "uncertain" not in str(found)
    assert found.products.item() < 300  # the matrix was not formed


def test_traces_never_exceed_the_radius_and_powers_never_fall_below_it() -> None:
    for matrix, truth in CASES.values():
        assert eigenpairs._trace_bound(matrix.numpy()) <= truth * (1 + 1e-9)
        assert truth * (1 - 1e-9) <= eigenpairs._power_bound(matrix.numpy())
    assert eigenpairs._power_bound(jordan(100, 0.5, 1.0).numpy()) < 1.5  # its norm
    assert eigenpairs._power_bound(torch.zeros(3, 3).numpy()) == 0
