from __future__ import annotations

import pytest
import torch
from analysis.instruments import CASES, settled
from problems import CoupledAttention, attention_inputs, expansive
from torch import Tensor

import meq
from meq.analysis import derive_equilibrium


def tangents(like: Tensor, seed: int = 0) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


def close(found: dict[str, Tensor], expected: dict[str, Tensor], *, tol: float) -> None:
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=tol, atol=tol)


@pytest.mark.parametrize("case", list(CASES))
def test_closed_form_one_shot_and_finite_differences_agree_for_an_input(case: str) -> None:
    operator, inputs, masks = CASES[case]()
    solution = settled(operator, inputs, masks)
    name = next(iter(solution.state))
    direction = tangents(inputs[name])
    if masks:
        direction = direction * masks[name][..., None]
    found = derive_equilibrium(operator, solution, inputs={name: direction})
    step = 1e-5
    up, down = (
        settled(operator, {**inputs, name: inputs[name] + sign * step * direction}, masks).state for sign in (1, -1)
    )
    expected = {m: (up[m] - down[m]) / (2 * step) for m in up}
    if masks:
        expected = {m: x * masks[m][..., None] for m, x in expected.items()}
    close(found.equilibrium, expected, tol=1e-7)
    assert found.nested is not None
    close(found.nested, found.equilibrium, tol=1e-8)
    assert (found.residual < 1e-9).all()
    assert (found.nested_residual < 1e-9).all()
    assert (found.disagreement < 1e-8).all()


@pytest.mark.parametrize("case", ["attention", "three"])
def test_closed_form_one_shot_and_finite_differences_agree_for_a_parameter(case: str) -> None:
    operator, inputs, _ = CASES[case]()
    name, parameter = next(iter(operator.named_parameters()))
    direction = tangents(parameter.detach())
    solution = settled(operator, inputs)
    found = derive_equilibrium(operator, solution, parameters={name: direction})
    step, states = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            parameter += sign * step * direction
            states.append(settled(operator, inputs).state)
            parameter -= sign * step * direction
    close(found.equilibrium, {m: (states[0][m] - states[1][m]) / (2 * step) for m in states[0]}, tol=1e-6)
    assert (found.disagreement < 1e-8).all()


def test_the_read_state_has_a_derivative_of_its_own_through_its_steps() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    options = {"steps": 3, "tol": 0.0, "solver": meq.Damped(step=0.5)}
    solution = meq.solve(operator, inputs, **options)
    direction = tangents(inputs["x"])
    found = derive_equilibrium(operator, solution, inputs={"x": direction})
    step = 1e-6
    up, down = (
        meq.solve(operator, {**inputs, "x": inputs["x"] + sign * step * direction}, **options).state for sign in (1, -1)
    )
    assert found.read is not None
    close(found.read, {m: (up[m] - down[m]) / (2 * step) for m in up}, tol=1e-7)
    assert (found.read_distance > 0.01).all()  # three steps are no equilibrium


def test_at_an_equilibrium_both_derivatives_meet() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    found = derive_equilibrium(operator, settled(operator, inputs), inputs={"y": tangents(inputs["y"])})
    assert (found.read_distance < 1e-8).all()
    assert "read state against equilibrium" in str(found)


def test_the_equilibrium_has_a_derivative_where_the_iteration_diverges() -> None:
    problem = expansive()
    exact = problem.equilibrium
    solution = meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0)
    at_root = meq.Solution(**{**vars(solution), "state": exact})
    direction = tangents(problem.inputs["a"])
    found = derive_equilibrium(problem.operator, at_root, inputs={"a": direction})
    moved = problem.operator.equilibrium({**problem.inputs, "a": problem.inputs["a"] + direction})
    close(found.equilibrium, {m: moved[m] - exact[m] for m in exact}, tol=1e-9)


def test_models_are_differentiated_by_their_injections() -> None:
    torch.manual_seed(0)
    model = meq.MutualEquilibrium({"image": 4, "text": 3}, 2, 8, heads=2, steps=4).double().eval()
    features = {"image": torch.randn(2, 3, 4).double(), "text": torch.randn(2, 2, 3).double()}
    solution = model(features).solution
    direction = tangents(solution.inputs["injection"]["image"].detach())
    found = derive_equilibrium(model.operator, solution, inputs={"injection": {"image": direction}}, nested=False)
    assert (found.residual < 1e-8).all()
    assert found.nested is None
    step, states = 1e-6, []
    for sign in (1, -1):
        context = {**solution.inputs, "injection": dict(solution.inputs["injection"])}
        context["injection"]["image"] = context["injection"]["image"] + sign * step * direction
        states.append(meq.solve(model.operator, context, solver=model.damped(), steps=4, tol=0.0).state)
    assert found.read is not None
    close(found.read, {m: (states[0][m] - states[1][m]).detach() / (2 * step) for m in states[0]}, tol=1e-6)


def test_wrong_directions_are_named() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    solution = settled(operator, inputs)
    with pytest.raises(ValueError, match="needs a direction"):
        derive_equilibrium(operator, solution)
    with pytest.raises(ValueError, match=r"inputs has no 'z' to move"):
        derive_equilibrium(operator, solution, inputs={"z": inputs["x"]})
    with pytest.raises(ValueError, match=r"inputs\['x'\] has shape \(1,\)"):
        derive_equilibrium(operator, solution, inputs={"x": torch.ones(1)})
    with pytest.raises(ValueError, match="did you mean 'weights'"):
        derive_equilibrium(operator, solution, parameters={"weight": torch.ones(1)})
