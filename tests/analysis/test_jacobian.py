from __future__ import annotations

import pytest
import torch
from analysis.instruments import CASES, padded_attention, settled
from problems import CoupledAttention, attention_inputs, rotation
from torch import Tensor

import meq
from meq.analysis import dense_jacobian, leading_eigenvalue, measure_blocks
from meq.analysis import linear as linear_module
from meq.analysis.differential import jacobian, one_sample, source_jacobian
from meq.analysis.jacobian import whole_statistic
from meq.analysis.linear import Matrix
from meq.analysis.sources import find_sources


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
    monkeypatch.setattr(linear_module, "SMALL", 3)
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
