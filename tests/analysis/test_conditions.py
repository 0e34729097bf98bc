from __future__ import annotations

import math

import pytest
import torch
from analysis.instruments import CASES, settled, two_vectors
from problems import known

import meq
from meq.analysis import check_conditions


def test_the_invertibility_proposition_as_printed_is_false() -> None:
    """rho(F_x) = rho(G_y) = 0 and the left side is below 1, yet there is no inverse: the condition does not apply."""
    problem = two_vectors([[0, 100, 0, 0], [0, 0, 0.1, 0], [0.1, 0, 0, 0], [0, 0, 0, 0]])
    jacobian = problem.operator.jacobian.detach()
    fx, fy, gx, gy = jacobian[:2, :2], jacobian[:2, 2:], jacobian[2:, :2], jacobian[2:, 2:]
    assert torch.linalg.eigvals(fx).abs().max() == 0
    size = lambda block: torch.linalg.matrix_norm(block, 2).item()  # noqa: E731
    assert size(gx) * size(fy) / ((1 - size(gy)) * (1 - size(fx))) < 1
    assert torch.linalg.det(torch.eye(4) - jacobian).item() == pytest.approx(0, abs=1e-12)

    found = check_conditions(problem.operator, meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0))
    assert found.blocks.isnan().all()
    assert found.invertible == ["nothing"]
    assert "does not apply to 1" in str(found)


def test_a_contraction_can_fail_the_block_condition() -> None:
    """0.99 times a rotation by 45 degrees: |J| < 1, and the blocks cannot see it."""
    turn = 0.99 * math.cos(math.pi / 4)
    eye = torch.eye(2, dtype=torch.float64)
    matrix = torch.cat([torch.cat([turn * eye, -turn * eye], 1), torch.cat([turn * eye, turn * eye], 1)])
    problem = known(matrix, {"x": (2,), "y": (2,)}, batch=1)
    found = check_conditions(problem.operator, meq.solve(problem.operator, problem.inputs))
    assert found.norm.item() == pytest.approx(0.99)
    assert found.radius.item() == pytest.approx(0.99)
    assert found.blocks.item() == pytest.approx(turn / (1 - turn))
    assert found.blocks.item() > 1
    assert found.invertible == ["rho(J) < 1 and |J| < 1"]


def test_the_block_condition_can_hold_where_the_norm_fails() -> None:
    problem = two_vectors([[0, 0, 3, 0], [0, 0, 0, 3], [0.1, 0, 0, 0], [0, 0.1, 0, 0]])
    found = check_conditions(problem.operator, meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0))
    assert found.norm.item() == pytest.approx(3)
    assert found.blocks.item() == pytest.approx(math.sqrt(0.3))  # squared it is the paper's left side
    assert found.invertible == ["rho(J) < 1 and blocks"]


@pytest.mark.parametrize("seed", range(20))
def test_where_the_block_condition_holds_the_radius_is_below_one(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = 0.25 * torch.randn(6, 6, generator=generator, dtype=torch.float64)
    problem = known(matrix, {"a": (2,), "b": (2,), "c": (2,)}, batch=1)
    found = check_conditions(problem.operator, meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0))
    if found.blocks.item() < 1 or found.norm.item() < 1:
        assert found.radius.item() < 1


def test_three_modalities_are_judged_by_the_comparison_matrix() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    strengths = torch.tensor([[0.2, 0.3, 0.1], [0.1, 0.5, 0.2], [0.3, 0.1, 0.4]], dtype=torch.float64)
    problem = known(torch.kron(strengths, eye), {"a": (2,), "b": (2,), "c": (2,)}, batch=1)
    found = check_conditions(problem.operator, meq.solve(problem.operator, problem.inputs))
    comparison = strengths / (1 - strengths.diag())[:, None]
    comparison.fill_diagonal_(0)
    assert found.blocks.item() == pytest.approx(torch.linalg.eigvals(comparison).abs().max().item())


def test_an_absent_modality_is_left_out() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    strengths = torch.tensor([[0.2, 0.3], [0.4, 5.0]], dtype=torch.float64)
    problem = known(torch.kron(strengths, eye), {"a": (2,), "b": (2,)}, batch=2)
    masks = {"b": torch.tensor([True, False])}
    solution = meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0, masks=masks)
    found = check_conditions(problem.operator, solution)
    assert found.blocks.isnan().tolist() == [True, False]
    assert found.blocks[1].item() == 0


@pytest.mark.parametrize("case", list(CASES))
def test_exact_and_matrix_free_agree_and_print(case: str) -> None:
    operator, inputs, masks = CASES[case]()
    solution = settled(operator, inputs, masks)
    exact, found = check_conditions(operator, solution, exact=True), check_conditions(operator, solution)
    torch.testing.assert_close(found.blocks, exact.blocks)
    torch.testing.assert_close(found.norm, exact.norm)
    page = str(found)
    assert "margin" in page
    assert "I - J is invertible" in page
