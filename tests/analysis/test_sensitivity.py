from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis.instruments import CASES, dense, settled
from problems import rotation

import meq
from meq.analysis import measure_sensitivity
from meq.analysis import products as products_module
from meq.analysis.products import some_samples


@pytest.mark.parametrize("case", list(CASES))
def test_the_bound_covers_the_derivative_which_is_what_is_measured(case: str) -> None:
    operator, inputs, masks = CASES[case]()
    found = measure_sensitivity(operator, settled(operator, inputs, masks), size=1e-5)
    assert found.settled.all()
    assert (found.derivative <= found.bound * (1 + 1e-9)).all()
    torch.testing.assert_close(found.worst, found.derivative, rtol=1e-3, atol=0)
    assert (found.random < found.worst).all()
    assert (found.residual < 1e-9).all()
    for left, right in found.self_sides.values():
        assert (left <= right * (1 + 1e-9)).all()
        assert (left > 0).all()


def test_an_affine_map_gives_the_norm_of_its_inverse() -> None:
    """dT/du = I, so that bound, derivative and measured worst case are all |(I - J)^-1|."""
    operator, inputs, _ = CASES["three"]()
    solution = settled(operator, inputs)
    found = measure_sensitivity(operator, solution)
    inverse = np.linalg.inv(np.eye(17) - dense(operator, solution)[0])
    expected = torch.full((3,), float(np.linalg.norm(inverse, 2)), dtype=torch.float64)
    for value in (found.bound, found.derivative):
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.worst, expected, rtol=1e-4, atol=0)
    own = float(np.linalg.norm(inverse[:6, :6], 2))
    torch.testing.assert_close(found.self_sides["image"][0], torch.full((3,), own).double(), rtol=1e-6, atol=0)


def test_without_stored_matrices_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, inputs, masks = CASES["padded"]()
    solution = some_samples(settled(operator, inputs, masks), [1])
    exact = measure_sensitivity(operator, solution, exact=True)
    monkeypatch.setattr(products_module, "FORM_LIMIT", 0)
    monkeypatch.setattr(products_module, "SMALL", 4)
    found = measure_sensitivity(operator, solution)
    torch.testing.assert_close(found.bound, exact.bound, rtol=2e-2, atol=0)
    torch.testing.assert_close(found.derivative, exact.derivative, rtol=2e-2, atol=0)
    for a, row in exact.inputs.items():
        for b, value in row.items():
            torch.testing.assert_close(found.inputs[a][b], value, rtol=1e-6, atol=0)


def test_cross_modal_sensitivity_is_that_of_the_paper() -> None:
    """dz_x/dy = (I - F_x - F_y (I - G_y)^-1 G_x)^-1 F_y (I - G_y)^-1 dG/dy, by finite differences of the solution."""
    operator, inputs, _ = CASES["attention"]()
    solution = settled(operator, inputs)
    found = measure_sensitivity(operator, solution, probes=300, directions=0)
    step, squares = 1e-5, torch.zeros(3, dtype=torch.float64)
    for token in range(2):
        for channel in range(4):
            shift = torch.zeros_like(inputs["y"])
            shift[:, token, channel] = step
            up, down = (settled(operator, {**inputs, "y": inputs["y"] + sign * shift}).state["x"] for sign in (1, -1))
            squares += ((up - down) / (2 * step)).square().flatten(1).sum(1)
    torch.testing.assert_close(found.inputs["x"]["y"], (squares / 12).sqrt(), rtol=0.1, atol=0)


def test_a_modality_without_coupling_moves_nobody_else() -> None:
    problem = rotation(scale=0.0)
    found = measure_sensitivity(problem.operator, meq.solve(problem.operator, problem.inputs, steps=5))
    assert found.inputs["a"]["b"].tolist() == [0, 0, 0]
    assert found.inputs["a"]["a"].tolist() == pytest.approx([1, 1, 1])


def test_solves_that_do_not_settle_are_said_to_be_rough() -> None:
    problem = rotation(scale=0.9)
    found = measure_sensitivity(problem.operator, meq.solve(problem.operator, problem.inputs, steps=2), steps=1)
    assert not found.settled.any()
    assert "3 samples did not settle" in str(found)


def test_it_prints_both_sides_and_the_table() -> None:
    operator, inputs, _ = CASES["three"]()
    page = str(measure_sensitivity(operator, settled(operator, inputs)))
    for words in ("bound", "measured, worst direction", "equilibrium of / input of", "self bound", "audio"):
        assert words in page
