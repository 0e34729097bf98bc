from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis.instruments import CASES, dense, settled
from problems import expansive, known

import meq
from meq.analysis import dense_jacobian, measure_influence
from meq.analysis.products import some_samples


@pytest.mark.parametrize("case", list(CASES))
def test_the_exact_table_is_the_inverse_in_blocks(case: str) -> None:
    operator, inputs, masks = CASES[case]()
    solution = settled(operator, inputs, masks)
    found = measure_influence(operator, solution, exact=True)
    names = list(solution.state)
    for row, jacobian in enumerate(dense(operator, solution)):
        inverse = np.linalg.inv(np.eye(len(jacobian)) - jacobian)
        counts = [
            int(masks[m][row].sum()) * solution.state[m].shape[-1] if masks else solution.state[m][row].numel()
            for m in names
        ]
        ends = np.cumsum(counts)
        places = {m: slice(end - count, end) for m, end, count in zip(names, ends, counts, strict=True)}
        for a in names:
            for b in names:
                expected = np.linalg.norm(inverse[places[a], places[b]]) / np.sqrt(counts[names.index(a)])
                assert found.total[a][b][row] == pytest.approx(expected)


def test_the_diagonal_is_the_papers_total_influence() -> None:
    """(I - F_x - F_y (I - G_y)^-1 G_x)^-1, and its two parts, written out."""
    operator, inputs, _ = CASES["attention"]()
    solution = settled(operator, inputs)
    found = measure_influence(operator, solution, exact=True)
    for row, blocks in enumerate(dense_jacobian(operator, solution)):
        fx, fy, gx, gy = (blocks[a][b] for a, b in (("x", "x"), ("x", "y"), ("y", "x"), ("y", "y")))
        cross = fy @ torch.linalg.inv(torch.eye(len(gy)) - gy) @ gx
        total = torch.linalg.inv(torch.eye(len(fx)) - fx - cross)
        root = len(fx) ** 0.5
        torch.testing.assert_close(found.total["x"]["x"][row], total.norm() / root)
        torch.testing.assert_close(found.own["x"][row], fx.norm() / root)
        torch.testing.assert_close(found.cross["x"][row], cross.norm() / root)


@pytest.mark.parametrize("case", list(CASES))
def test_probing_comes_close_to_the_exact_table(case: str) -> None:
    operator, inputs, masks = CASES[case]()
    solution = some_samples(settled(operator, inputs, masks), [1])
    exact = measure_influence(operator, solution, exact=True, exchanges=(1, 3))
    found = measure_influence(operator, solution, probes=30, exchanges=(1, 3))
    assert (found.residual < 1e-9).all()
    for a, row in exact.total.items():
        torch.testing.assert_close(found.own[a], exact.own[a], rtol=0.2, atol=1e-3)
        torch.testing.assert_close(found.cross[a], exact.cross[a], rtol=0.2, atol=1e-3)
        for b, size in row.items():
            torch.testing.assert_close(found.total[a][b], size, rtol=0.2, atol=1e-3)
            torch.testing.assert_close(found.partial[3][a][b], exact.partial[3][a][b], rtol=0.2, atol=1e-3)
    torch.testing.assert_close(found.left_out[3], exact.left_out[3], rtol=0.2, atol=1e-6)


def test_what_the_first_exchanges_carry_grows_to_everything_where_the_radius_is_below_one() -> None:
    operator, inputs, _ = CASES["three"]()
    found = measure_influence(operator, settled(operator, inputs), exchanges=(0, 1, 5, 20, 80))
    left = torch.stack([found.left_out[k] for k in (0, 1, 5, 20, 80)])
    assert (left[1:] < left[:-1]).all()
    assert (left[-1] < 1e-8).all()
    assert "converge" in str(found)


def test_divergence_is_said_where_the_radius_is_above_one() -> None:
    problem = expansive()
    solution = meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0)
    found = measure_influence(problem.operator, solution, exchanges=(1, 10))
    assert (found.left_out[10] > found.left_out[1]).all()
    assert "the Neumann sums diverge for 3 of 3 samples" in str(found)
    assert (found.residual < 1e-9).all()  # the influence of the equilibrium exists all the same


@pytest.mark.parametrize("exact", [True, False])
def test_where_there_is_no_influence_it_says_so(exact: bool) -> None:
    problem = known(torch.eye(4, dtype=torch.float64), {"a": (2,), "b": (2,)})
    solution = meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0)
    assert "singular" in str(measure_influence(problem.operator, solution, exact=exact))


def test_uncoupled_modalities_have_no_cross_influence() -> None:
    problem = known(torch.diag(torch.tensor([0.5, 0.5, 0.0, 0.0]).double()), {"a": (2,), "b": (2,)})
    solution = meq.solve(problem.operator, problem.inputs)
    found = measure_influence(problem.operator, solution)
    assert found.total["a"]["a"].tolist() == pytest.approx([2.0] * 3)
    assert found.total["b"]["b"].tolist() == pytest.approx([1.0] * 3)
    assert found.total["a"]["b"].tolist() == [0.0] * 3
    assert found.cross["a"].tolist() == [0.0] * 3
