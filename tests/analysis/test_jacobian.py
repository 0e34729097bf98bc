from __future__ import annotations

import math

import pytest
import torch
from analysis.instruments import CASES, padded_attention, settled, two_vectors
from problems import CoupledAttention, attention_inputs, known, rotation
from torch import Tensor

import meq
from meq.analysis import check_conditions, dense_jacobian, leading_eigenvalue, measure_blocks
from meq.analysis import products as products_module
from meq.analysis.jacobian import whole_statistic
from meq.analysis.products import Matrix, find_sources, jacobian, one_sample, source_jacobian


def drawn(like: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in like.items()}


@pytest.mark.parametrize("case", list(CASES))
def test_products_forwards_and_backwards_are_those_of_the_dense_jacobian(case: str) -> None:
    operator, inputs, masks = CASES[case]()
    solution = settled(operator, inputs, masks)
    for row in range(3):
        sample = one_sample(solution, row)
        matrix = Matrix.of(operator, sample)
        vector = torch.randn(matrix.rows.size, dtype=torch.float64).numpy()
        whole = matrix.dense()
        torch.testing.assert_close(torch.from_numpy(matrix.push(vector)), torch.from_numpy(whole @ vector))
        torch.testing.assert_close(torch.from_numpy(matrix.pull(vector)), torch.from_numpy(whole.T @ vector))


def test_a_product_forwards_is_a_finite_difference() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    solution = settled(operator, inputs)
    v, step = drawn(solution.state, 1), 1e-6
    pushed = jacobian(operator, solution).push(v)
    up = operator({name: z + step * v[name] for name, z in solution.state.items()}, inputs)
    down = operator({name: z - step * v[name] for name, z in solution.state.items()}, inputs)
    for name, x in pushed.items():
        torch.testing.assert_close(x, (up[name] - down[name]) / (2 * step), rtol=1e-7, atol=1e-9)


def test_the_derivative_by_the_inputs_is_a_finite_difference() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    solution = settled(operator, inputs)
    derivative = source_jacobian(operator, solution, find_sources(operator, solution))
    v, step = drawn({name: inputs[name] for name in ("x", "y")}, 2), 1e-6
    pushed = derivative.push(v)
    up = operator(solution.state, {name: x + step * v[name] for name, x in inputs.items()})
    down = operator(solution.state, {name: x - step * v[name] for name, x in inputs.items()})
    for name, x in pushed.items():
        torch.testing.assert_close(x, (up[name] - down[name]) / (2 * step), rtol=1e-7, atol=1e-9)


def test_dense_blocks_hold_the_real_entries_only() -> None:
    operator, inputs, masks = padded_attention()
    blocks = dense_jacobian(operator, settled(operator, inputs, masks))
    bare = dense_jacobian(operator, settled(operator, attention_inputs()))
    for padded_sample, sample in zip(blocks, bare, strict=True):
        for a in ("x", "y"):
            for b in ("x", "y"):
                torch.testing.assert_close(padded_sample[a][b], sample[a][b])


@pytest.mark.parametrize("case", list(CASES))
def test_estimated_norms_agree_with_exact_ones(case: str) -> None:
    operator, inputs, masks = CASES[case]()
    solution = settled(operator, inputs, masks)
    exact = measure_blocks(operator, solution, exact=True)
    estimate = measure_blocks(operator, solution, probes=400)
    for a, row in exact.frobenius.items():
        for b, size in row.items():
            torch.testing.assert_close(estimate.spectral[a][b], exact.spectral[a][b])
            error = estimate.standard_error[a][b]
            assert ((estimate.frobenius[a][b] - size).abs() <= 4 * error + 1e-12).all()
            assert (error <= 0.05 * size + 1e-12).all()
    assert (exact.standard_error["x" if case != "three" else "audio"]["y" if case != "three" else "text"] == 0).all()


def test_operator_norms_without_forming_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, inputs, masks = CASES["three"]()
    solution = settled(operator, inputs, masks)
    exact = measure_blocks(operator, solution, exact=True)
    monkeypatch.setattr(products_module, "SMALL", 3)
    found = measure_blocks(operator, solution, probes=1, tol=1e-8)
    for a, row in exact.spectral.items():
        for b, size in row.items():
            torch.testing.assert_close(found.spectral[a][b], size, rtol=1e-6, atol=0)


def test_the_statistic_of_the_identity_is_one_and_the_ratio_follows_its_formula() -> None:
    problem = rotation(scale=1.0)  # x reads y only, y reads x only
    solution = meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0)
    blocks = measure_blocks(problem.operator, solution, exact=True)
    torch.testing.assert_close(blocks.statistic["a"]["b"], torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(whole_statistic(blocks.statistic, solution), torch.ones(3, dtype=torch.float64))
    operator, inputs, _ = CASES["three"]()
    s = measure_blocks(operator, settled(operator, inputs), exact=True)
    expected = (s.statistic["audio"]["image"] ** 2 + s.statistic["audio"]["text"] ** 2).sqrt()
    torch.testing.assert_close(s.cross_self["audio"], expected / s.statistic["audio"]["audio"])


def test_an_absent_modality_has_no_blocks() -> None:
    problem = rotation()
    there = torch.tensor([True, False, True])
    solution = meq.solve(problem.operator, problem.inputs, steps=3, tol=0.0, masks={"a": there})
    for found in (measure_blocks(problem.operator, solution), measure_blocks(problem.operator, solution, exact=True)):
        for sizes in (found.frobenius, found.spectral):
            assert sizes["a"]["b"].isnan().tolist() == [False, True, False]
            assert sizes["b"]["b"].isnan().tolist() == [False, False, False]


def test_results_print_as_tables() -> None:
    operator, inputs, _ = CASES["three"]()
    solution = settled(operator, inputs)
    page = str(measure_blocks(operator, solution))
    assert "operator norm" in page
    assert all(name in page for name in ("image", "audio", "text", "cross/self", "products"))
    page = str(leading_eigenvalue(operator, solution))
    assert "spectral radius" in page
    assert "operator norm (not the radius)" in page


def test_inference_mode_is_refused_with_advice() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    solution = settled(operator, inputs).detach()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"use torch\.no_grad"):
        measure_blocks(operator, solution)
    with torch.no_grad():
        measure_blocks(operator, solution)


def test_an_operator_whose_inputs_are_unknown_says_what_it_needs() -> None:
    class Closed(meq.Operator):
        def start(self, inputs: Tensor) -> meq.State:
            return {"a": inputs}

        def forward(self, state: meq.State, inputs: Tensor) -> meq.State:
            return {"a": 0.5 * state["a"] + inputs}

    solution = meq.solve(Closed(), torch.ones(2, 3))
    with pytest.raises(TypeError, match="give Closed the methods sources"):
        find_sources(Closed(), solution)


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
