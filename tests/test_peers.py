"""What the nearest relative, TorchDEQ, gets wrong, and that meq does not: one small demonstration each."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from problems import CoupledAttention, Cubing, attention_inputs, contraction, rotation
from torch import Tensor

import meq
from meq import Stop


def dense_jacobian(operator: meq.Operator, solution: meq.Solution, row: int) -> Tensor:
    """dT/dz of one sample over all its entries."""
    shapes = {name: z[row : row + 1].shape for name, z in solution.state.items()}
    inputs = {name: x[row : row + 1] for name, x in solution.inputs.items()}

    def flat_map(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        state = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return torch.cat([z.flatten() for z in operator(state, inputs).values()])

    here = torch.cat([z[row].detach().flatten() for z in solution.state.values()])
    return torch.autograd.functional.jacobian(flat_map, here)


def rayleigh_quotient(jacobian: Tensor, iterations: int = 50) -> Tensor:
    """v^T J v / v^T v after power iterations: what TorchDEQ calls the spectral radius."""
    v = torch.randn(len(jacobian), generator=torch.Generator().manual_seed(0), dtype=jacobian.dtype)
    for _ in range(iterations):
        v = jacobian @ v / v.norm()
    return (v @ jacobian @ v / (v @ v)).abs()


def coupled_solution() -> tuple[meq.Operator, meq.Solution]:
    operator = CoupledAttention()
    return operator, meq.solve(operator, attention_inputs(), steps=200, tol=1e-10)


def test_the_spectral_radius_of_a_rotation_is_right_where_a_rayleigh_quotient_is_zero() -> None:
    problem = rotation()
    solution = meq.solve(problem.operator, problem.inputs, steps=5)
    expected = torch.full((3,), problem.operator.radius, dtype=torch.float64)
    torch.testing.assert_close(meq.spectral_radius(problem.operator, solution), expected)
    assert rayleigh_quotient(problem.operator.jacobian.detach()) < 1e-12


def test_the_spectral_radius_of_coupled_attention_is_right_where_a_rayleigh_quotient_is_wrong() -> None:
    operator, solution = coupled_solution()
    jacobians = [dense_jacobian(operator, solution, row) for row in range(3)]
    exact = torch.stack([torch.linalg.eigvals(jacobian).abs().max() for jacobian in jacobians])
    torch.testing.assert_close(meq.spectral_radius(operator, solution), exact)
    quotients = torch.stack([rayleigh_quotient(jacobian) for jacobian in jacobians])
    assert ((quotients - exact).abs() / exact).max() > 0.05


def test_the_residual_is_not_scaled_by_the_damping() -> None:
    problem = contraction()
    state = meq.solve(problem.operator, problem.inputs, steps=3, tol=0.0).state
    operator = copy.deepcopy(problem.operator)
    operator.start = lambda inputs: state  # both begin at one state, so the first residual must be one number
    options = {"steps": 1, "tol": 0.0}
    short = meq.solve(operator, problem.inputs, solver=meq.Damped(step=0.1), **options)
    whole = meq.solve(operator, problem.inputs, solver=meq.Damped(step=1.0), **options)
    assert torch.equal(short.residuals["text"], whole.residuals["text"])


def test_nan_in_one_iterate_does_not_poison_the_kept_state() -> None:
    inputs = {"a": torch.tensor([[0.5], [1e15]])}
    solution = meq.solve(Cubing(), inputs, solver=meq.Damped(step=1.0), steps=20)
    assert solution.stop == [Stop.SETTLED, Stop.DIVERGED]
    assert all(z.isfinite().all() for z in solution.state.values())


@pytest.mark.parametrize("call", [meq.solve, meq.Damped, meq.Anderson, meq.Broyden, meq.Implicit, meq.Phantom])
def test_unknown_options_are_rejected(call: Any) -> None:
    with pytest.raises(TypeError, match="has no option 'f_max_iter'"):
        call(f_max_iter=30)


def test_anderson_works_in_bfloat16() -> None:
    operator, inputs = CoupledAttention(dtype=torch.bfloat16), attention_inputs(dtype=torch.bfloat16)
    solution = meq.solve(operator, inputs, solver=meq.Anderson(), steps=30, tol=0.02)
    assert solution.stop == [Stop.SETTLED] * 3
    solution.state["x"].sum().backward()
    assert operator.weights.grad is not None
    assert operator.weights.grad.isfinite().all()


@pytest.mark.parametrize("backward", [meq.Unrolled(), meq.Implicit()])
def test_an_operator_can_be_saved_and_copied_after_a_solve(backward: meq.Backward) -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    state = meq.solve(operator, inputs, backward=backward).state
    whole, weights = io.BytesIO(), io.BytesIO()
    torch.save(operator, whole)
    torch.save(operator.state_dict(), weights)
    whole.seek(0)
    weights.seek(0)
    restored = CoupledAttention()
    restored.load_state_dict(torch.load(weights, weights_only=True))
    for twin in (torch.load(whole, weights_only=False), restored, copy.deepcopy(operator)):
        torch.testing.assert_close(meq.solve(twin, inputs, backward=backward).state, state)


@pytest.mark.parametrize("backward", [meq.Unrolled(), meq.Checkpointed(), meq.Implicit(), meq.Phantom(2)])
def test_eval_mode_keeps_the_gradient(backward: meq.Backward) -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    gradients = []
    for mode in (operator.train(), operator.eval()):
        solution = meq.solve(mode, inputs, steps=30, backward=backward)
        gradients.append(torch.autograd.grad(solution.state["x"].sum(), operator.weights)[0])
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_the_residual_does_not_grow_with_padding() -> None:
    operator, bare = CoupledAttention(), attention_inputs()
    padded = {name: torch.cat([x, 9 * torch.randn(3, 20, 4, dtype=x.dtype)], dim=1) for name, x in bare.items()}
    masks = {name: torch.arange(x.shape[1] + 20).expand(3, -1) < x.shape[1] for name, x in bare.items()}
    inputs = padded | {f"{name}_mask": mask for name, mask in masks.items()}
    plain = meq.solve(operator, bare, steps=6, tol=0.0).residuals
    with_padding = meq.solve(operator, inputs, steps=6, tol=0.0, masks=masks).residuals
    torch.testing.assert_close(with_padding, plain, rtol=1e-10, atol=1e-12)
    unaware = meq.solve(operator, inputs, steps=6, tol=0.0).residuals
    assert not torch.allclose(unaware["x"], plain["x"], rtol=0.01), "without masks, the padding counts"


def test_stopping_is_per_sample_and_not_by_the_batch_maximum() -> None:
    problem = contraction()
    near = {name: x.clone() for name, x in problem.inputs.items()}
    for x in near.values():
        x[0] = 0  # at its equilibrium from the start
    solution = meq.solve(problem.operator, near, steps=50, tol=1e-3)
    assert solution.steps[0] == 0
    assert solution.steps[1:].min() > 5
    assert math.isnan(solution.residuals["text"][1, 0])
