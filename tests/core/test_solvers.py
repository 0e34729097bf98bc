from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import CoupledAttention, Known, attention_inputs, contraction, known, stiff, three_modalities
from torch import Tensor

import meq
from meq import Stop
from meq.core.iteration import Problem, take_step

ACCELERATED = [meq.Anderson(), meq.Broyden()]
by_accelerated = pytest.mark.parametrize("solver", ACCELERATED, ids=lambda solver: type(solver).__name__)


def linear(size: int) -> Known:
    """A contraction of one modality with `size` entries and no structure that a solver could profit from."""
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    return known(0.9 * matrix / torch.linalg.eigvals(matrix).abs().max(), {"a": (size,)})


def steps_to_solve(problem: Known, solver: meq.Solver) -> int:
    solution = meq.solve(problem.operator, problem.inputs, solver=solver, steps=100, tol=1e-10)
    assert solution.stop == [Stop.SETTLED] * 3
    assert problem.error(solution.state) < 1e-8
    return int(solution.steps.max())


def test_anderson_and_damped_agree_on_a_linear_operator() -> None:
    problem = contraction()
    options = {"steps": 400, "tol": 1e-13}
    damped = meq.solve(problem.operator, problem.inputs, solver=meq.Damped(step=0.5), **options)
    anderson = meq.solve(problem.operator, problem.inputs, solver=meq.Anderson(), **options)
    torch.testing.assert_close(anderson.state, damped.state, rtol=1e-10, atol=1e-10)
    assert anderson.steps.max() < damped.steps.min()


@pytest.mark.parametrize("size", [2, 4, 7])
def test_anderson_solves_a_linear_problem_in_one_step_more_than_it_has_entries(size: int) -> None:
    assert steps_to_solve(linear(size), meq.Anderson(history=size)) <= size + 2


@pytest.mark.parametrize("size", [2, 4, 7])
def test_broyden_solves_a_linear_problem_in_twice_as_many_steps_as_it_has_entries(size: int) -> None:
    assert steps_to_solve(linear(size), meq.Broyden(history=2 * size)) <= 2 * size + 1


@by_accelerated
def test_the_first_step_is_the_plain_one(solver: meq.Solver) -> None:
    problem = contraction()
    first = meq.solve(problem.operator, problem.inputs, solver=solver, steps=1, tol=0.0).state
    plain = meq.solve(problem.operator, problem.inputs, solver=meq.Damped(step=1.0), steps=1, tol=0.0).state
    torch.testing.assert_close(first, plain)


@by_accelerated
def test_a_sample_at_its_equilibrium_beside_one_that_moves_gives_finite_states_and_gradients(
    solver: meq.Solver,
) -> None:
    problem = contraction()
    inputs = {name: x.clone() for name, x in problem.inputs.items()}
    for x in inputs.values():
        x[1] = 0  # starts at its equilibrium, zero, so that all its differences vanish
        x.requires_grad_()
    solution = meq.solve(problem.operator, inputs, solver=solver, steps=30, tol=0.0)
    assert all(z.isfinite().all() for z in solution.state.values())
    assert all((z[1] == 0).all() for z in solution.state.values())
    leaves = [problem.operator.jacobian, *inputs.values()]
    gradients = torch.autograd.grad(sum(z.square().sum() for z in solution.state.values()), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)

    moving = {name: x[[0, 2]] for name, x in problem.inputs.items()}
    alone = meq.solve(problem.operator, moving, solver=solver, steps=30, tol=0.0)
    (expected,) = torch.autograd.grad(sum(z.square().sum() for z in alone.state.values()), leaves[0])
    torch.testing.assert_close(gradients[0], expected, rtol=1e-7, atol=1e-8)


@by_accelerated
def test_steps_far_beyond_convergence_stay_at_the_equilibrium(solver: meq.Solver) -> None:
    for make in (stiff, three_modalities):
        problem = make()
        solution = meq.solve(problem.operator, problem.inputs, solver=solver, steps=60, tol=0.0)
        assert problem.error(solution.state) < 1e-9
        gradient = torch.autograd.grad(sum(z.sum() for z in solution.state.values()), problem.operator.jacobian)[0]
        assert gradient.isfinite().all()


@pytest.mark.parametrize("solver", [meq.Damped(step=1.0), *ACCELERATED], ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_steps_far_beyond_convergence_do_not_spoil_the_gradient(solver: meq.Solver, dtype: torch.dtype) -> None:
    def gradient(dtype: torch.dtype, solver: meq.Solver) -> Tensor:
        operator, inputs = CoupledAttention(dtype=dtype), attention_inputs(dtype=dtype)
        solution = meq.solve(operator, inputs, solver=solver, steps=40, tol=0.0)
        return torch.autograd.grad(sum(z.square().sum() for z in solution.state.values()), operator.weights)[0].double()

    exact = gradient(torch.float64, meq.Damped(step=1.0))
    error = (gradient(dtype, solver) - exact).norm() / exact.norm()
    assert error < 1e-9 if dtype == torch.float64 else error < 8 * torch.finfo(dtype).eps


class Translation(meq.Operator):
    """T(z) = z + b: no equilibrium, and moves that never turn."""

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return dict(inputs)

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        return {name: z + inputs[name] for name, z in state.items()}


@by_accelerated
def test_moves_that_never_change_leave_plain_steps_with_their_gradient(solver: meq.Solver) -> None:
    inputs = {"a": torch.tensor([[1.0, 2.0]], requires_grad=True)}
    solution = meq.solve(Translation(), inputs, solver=solver, steps=4, tol=0.0)
    assert solution.state["a"].isfinite().all()
    assert torch.autograd.grad(solution.state["a"].sum(), inputs["a"])[0].isfinite().all()


@pytest.mark.parametrize(
    ("solver", "lists"),
    [(meq.Anderson(history=3), ("slides", "turns")), (meq.Broyden(history=3), ("left", "right"))],
    ids=["Anderson", "Broyden"],
)
def test_no_more_states_are_kept_than_the_history_says(solver: Any, lists: tuple[str, str]) -> None:
    known_problem = contraction()
    problem = Problem(known_problem.operator, known_problem.inputs, {}, solver, steps=1, tol=0.0)
    state, memory, kept = problem.start(), None, []
    for _ in range(12):
        state, _, memory = take_step(problem, state, memory)
        kept.append(max(len(getattr(memory, name)) for name in lists))
    assert max(kept) == 3
    if isinstance(solver, meq.Anderson):
        assert tuple(memory.gram.shape) == (3, 3, 3)


class Mixed(meq.Operator):
    """Two modalities of different shapes and dtypes: a <- a/2 + mean(b) + x, b <- mean(a)/4 + y."""

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return {name: torch.zeros_like(x) for name, x in inputs.items()}

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        a, b = state["a"], state["b"]
        other_a = b.mean(1, keepdim=True)[..., None].to(a)
        other_b = a.mean((1, 2))[:, None].to(b)
        return {"a": a / 2 + other_a + inputs["a"], "b": other_b / 4 + inputs["b"]}


@pytest.mark.parametrize("solver", [meq.Damped(), *ACCELERATED], ids=lambda solver: type(solver).__name__)
def test_modalities_may_differ_in_shape_and_dtype(solver: meq.Solver) -> None:
    inputs = {"a": torch.ones(2, 3, 4, dtype=torch.float32), "b": torch.ones(2, 5, dtype=torch.float64)}
    solution = meq.solve(Mixed(), inputs, solver=solver, steps=200, tol=1e-6)
    assert solution.stop == [Stop.SETTLED] * 2
    assert {name: z.dtype for name, z in solution.state.items()} == {"a": torch.float32, "b": torch.float64}
    # a/2 = b + 1 and b = a/4 + 1, so a = 8 and b = 3
    torch.testing.assert_close(solution.state["a"], torch.full((2, 3, 4), 8.0), rtol=1e-4, atol=0)
    torch.testing.assert_close(solution.state["b"], torch.full((2, 5), 3.0, dtype=torch.float64), rtol=1e-4, atol=0)
