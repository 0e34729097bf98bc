from __future__ import annotations

import pytest
import torch
from live_memory import PeakBytes
from problems import CoupledAttention, attention_inputs, contraction, rotation, stiff, three_modalities
from torch import Tensor

import meq
from meq import Stop

SOLVERS = [meq.Damped(step=0.7), meq.Anderson(), meq.Broyden()]
by_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
TIGHT = meq.Implicit(solver=meq.Anderson(), steps=300, tol=1e-13)


def loss_of(state: meq.State) -> Tensor:
    """Weighs every modality and couples the first two, so that no gradient can hide."""
    total = sum((k + 1) * z.square().sum() for k, z in enumerate(state.values()))
    first, second = list(state.values())[:2]
    return total + first.sum() * second.sum()


def attention_gradients(backward: meq.Backward, **options: object) -> list[Tensor]:
    operator = CoupledAttention()
    inputs = {name: x.requires_grad_() for name, x in attention_inputs().items()}
    solution = meq.solve(operator, inputs, backward=backward, **options)
    return list(torch.autograd.grad(loss_of(solution.state), [operator.weights, *inputs.values()]))


@pytest.mark.parametrize("make", [contraction, rotation, stiff, three_modalities])
def test_unrolled_at_convergence_and_implicit_agree_with_the_exact_gradient(make: object) -> None:
    problem = make()
    leaves = [problem.operator.jacobian, *(x.requires_grad_() for x in problem.inputs.values())]
    exact = torch.autograd.grad(loss_of(problem.equilibrium), leaves)
    solver, budget = meq.Damped(step=1.0), {"steps": 4000, "tol": 1e-14}
    for backward in (meq.Unrolled(), TIGHT):
        solution = meq.solve(problem.operator, problem.inputs, solver=solver, backward=backward, **budget)
        for got, expected in zip(torch.autograd.grad(loss_of(solution.state), leaves), exact, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@by_solver
def test_implicit_and_unrolled_agree_with_finite_differences_on_a_nonlinear_map(solver: meq.Solver) -> None:
    def equilibrium_loss(weights: Tensor) -> Tensor:
        operator = CoupledAttention()
        with torch.no_grad():
            operator.weights.copy_(weights)
        return loss_of(meq.solve(operator, attention_inputs(), solver=solver, steps=400, tol=1e-14).state).detach()

    weights = CoupledAttention().weights.detach()
    entries = [(0, 0, 0), (2, 1, 3), (4, 2, 2), (5, 3, 1)]
    budget = {"solver": solver, "steps": 400, "tol": 1e-14}
    unrolled, implicit = attention_gradients(meq.Unrolled(), **budget)[0], attention_gradients(TIGHT, **budget)[0]
    for entry in entries:
        shift = torch.zeros_like(weights)
        shift[entry] = 1e-6
        difference = (equilibrium_loss(weights + shift) - equilibrium_loss(weights - shift)) / 2e-6
        torch.testing.assert_close(implicit[entry], difference, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(unrolled[entry], difference, rtol=1e-6, atol=1e-7)


@by_solver
def test_unrolled_is_the_exact_gradient_of_a_state_that_is_no_root(solver: meq.Solver) -> None:
    def read(weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        operator = CoupledAttention()
        del operator.weights
        operator.weights = weights
        return tuple(meq.solve(operator, {"x": x, "y": y}, solver=solver, steps=4, tol=0.0).state.values())

    inputs = attention_inputs(batch=1)
    weights = CoupledAttention().weights.detach().requires_grad_()
    assert torch.autograd.gradcheck(read, (weights, *(x.requires_grad_() for x in inputs.values())), fast_mode=True)


@by_solver
@pytest.mark.parametrize("tol", [0.0, 1e-3])
def test_checkpointed_equals_unrolled_to_the_last_bit(solver: meq.Solver, tol: float) -> None:
    unrolled = attention_gradients(meq.Unrolled(), solver=solver, steps=9, tol=tol)
    checkpointed = attention_gradients(meq.Checkpointed(), solver=solver, steps=9, tol=tol)
    for got, expected in zip(checkpointed, unrolled, strict=True):
        assert torch.equal(got, expected)


def test_checkpointed_repeats_the_random_numbers_of_the_forward_pass() -> None:
    class Noisy(CoupledAttention):
        def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
            image = super().forward(state, inputs)
            return {name: torch.nn.functional.dropout(z, 0.3) for name, z in image.items()}

    gradients = []
    for backward in (meq.Unrolled(), meq.Checkpointed()):
        torch.manual_seed(5)
        operator = Noisy()
        solution = meq.solve(operator, attention_inputs(), steps=6, tol=0.0, backward=backward)
        gradients.append(torch.autograd.grad(loss_of(solution.state), operator.weights)[0])
    assert torch.equal(*gradients)


def test_checkpointed_memory_grows_by_the_states_alone() -> None:
    operator = CoupledAttention()
    inputs = {name: x.repeat(2, 40, 1) for name, x in attention_inputs().items()}
    state_bytes = sum(x.numel() * x.element_size() for x in inputs.values())

    def peak(backward: meq.Backward, steps: int) -> int:
        with PeakBytes() as memory:
            loss_of(meq.solve(operator, inputs, steps=steps, tol=0.0, backward=backward).state).backward()
        return memory.peak

    growth = (peak(meq.Checkpointed(), 24) - peak(meq.Checkpointed(), 4)) / 20
    assert growth < 1.5 * state_bytes
    assert (peak(meq.Unrolled(), 24) - peak(meq.Unrolled(), 4)) / 20 > 10 * state_bytes
    assert peak(TIGHT, 24) < 1.05 * peak(TIGHT, 4)


def test_the_error_of_phantom_falls_with_its_steps_and_vanishes_when_all_are_tracked() -> None:
    options = {"solver": meq.Damped(step=0.7), "steps": 30, "tol": 0.0}
    exact = attention_gradients(meq.Unrolled(), **options)[0]
    errors = [
        ((attention_gradients(meq.Phantom(steps), **options)[0] - exact).norm() / exact.norm()).item()
        for steps in (1, 3, 6, 12, 30)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.05
    assert errors[3] < 0.01
    assert errors[4] == 0


def test_phantom_gives_settled_samples_their_gradient_and_leaves_their_state_alone() -> None:
    options = {"solver": meq.Damped(step=0.7), "steps": 200, "tol": 1e-10}
    operator, inputs = CoupledAttention(), attention_inputs()
    phantom = meq.solve(operator, inputs, backward=meq.Phantom(60), **options)
    plain = meq.solve(operator, inputs, **options)
    assert phantom.stop == [Stop.SETTLED] * 3
    assert phantom.steps.max() < 140, "settled before the tracked steps begin"
    for name, z in phantom.state.items():
        assert torch.equal(z, plain.state[name])
    exact = attention_gradients(TIGHT, **options)
    for got, expected in zip(attention_gradients(meq.Phantom(60), **options), exact, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("backward", [meq.Unrolled(), meq.Checkpointed(), meq.Phantom(9)])
def test_a_learned_damping_step_gets_its_exact_gradient(backward: meq.Backward) -> None:
    operator, inputs = CoupledAttention(), attention_inputs()

    def loss_at(logit: Tensor) -> Tensor:
        solver = meq.Damped(step=torch.sigmoid(logit))
        return loss_of(meq.solve(operator, inputs, solver=solver, steps=9, tol=0.0, backward=backward).state)

    logit = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss_at(logit), logit)
    difference = (loss_at(logit + 1e-6) - loss_at(logit - 1e-6)) / 2e-6
    torch.testing.assert_close(gradient, difference.detach(), rtol=1e-6, atol=1e-8)
    assert gradient.abs() > 1e-3


def test_phantom_sees_a_learned_step_through_its_last_steps_only() -> None:
    def gradient(backward: meq.Backward) -> Tensor:
        logit = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        solver = meq.Damped(step=torch.sigmoid(logit))
        solution = meq.solve(CoupledAttention(), attention_inputs(), solver=solver, steps=6, tol=0.0, backward=backward)
        return torch.autograd.grad(loss_of(solution.state), logit)[0]

    assert gradient(meq.Phantom(2)) != 0
    assert (gradient(meq.Phantom(2)) - gradient(meq.Unrolled())).abs() > 1e-4


def test_implicit_refuses_a_learned_step_and_says_why() -> None:
    solver = meq.Damped(step=torch.tensor(0.5, dtype=torch.float64, requires_grad=True))
    operator, inputs = CoupledAttention(), attention_inputs()
    with pytest.raises(ValueError, match="equilibrium does not depend on the damping step"):
        meq.solve(operator, inputs, solver=solver, backward=meq.Implicit())
    with torch.no_grad():
        meq.solve(operator, inputs, solver=solver, backward=meq.Implicit())


def test_implicit_reports_how_its_adjoint_was_solved() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    backward = meq.Implicit(solver=meq.Damped(step=1.0), steps=30, tol=1e-6)
    solution = meq.solve(operator, inputs, steps=100, tol=1e-10, backward=backward)
    assert solution.adjoint is not None
    assert solution.adjoint.stop is None, "nothing to report before backward has run"
    loss_of(solution.state).backward()
    assert solution.adjoint.stop == [Stop.SETTLED] * 3
    steps, residuals = solution.adjoint.steps, solution.adjoint.residuals
    assert residuals is not None
    assert steps is not None
    for row in range(3):
        assert all(rows[int(steps[row]), row] <= 1e-6 for rows in residuals.values())
        assert any(rows[int(steps[row]) - 1, row] > 1e-6 for rows in residuals.values())


def test_an_adjoint_that_diverges_is_warned_about() -> None:
    from problems import expansive

    problem = expansive()
    adjoint = meq.Implicit(solver=meq.Damped(step=1.0), steps=3000)
    solution = meq.solve(problem.operator, problem.inputs, solver=meq.Broyden(), steps=60, tol=1e-9, backward=adjoint)
    with pytest.warns(RuntimeWarning, match="adjoint equation of Implicit diverged"):
        loss_of(solution.state).backward()
    assert Stop.DIVERGED in solution.adjoint.stop


@pytest.mark.parametrize("backward", [meq.Unrolled(), meq.Checkpointed(), TIGHT, meq.Phantom(2)])
def test_gradients_follow_grad_mode_and_not_train_or_eval(backward: meq.Backward) -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    operator.eval()
    assert meq.solve(operator, inputs, backward=backward).state["x"].requires_grad
    operator.train()
    with torch.no_grad():
        assert not meq.solve(operator, inputs, backward=backward).state["x"].requires_grad


class Nested(meq.Operator):
    """A map that contains an equilibrium of its own: the inner state enters the outer one."""

    def __init__(self, backward: meq.Backward) -> None:
        super().__init__()
        self.inner, self.backward = CoupledAttention(), backward

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return {"z": torch.zeros_like(inputs["y"])}

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        shifted = {"x": inputs["x"], "y": inputs["y"] + state["z"]}
        options = {"solver": meq.Damped(step=1.0), "steps": 30, "tol": 1e-9}
        return {"z": 0.3 * meq.solve(self.inner, shifted, backward=self.backward, **options).state["y"]}


@pytest.mark.parametrize(
    ("backward", "accuracy"), [(meq.Checkpointed(), 1e-14), (meq.Implicit(tol=1e-9), 1e-6), (meq.Phantom(28), 1e-6)]
)
def test_solves_may_be_nested_and_repeated_before_one_backward(backward: meq.Backward, accuracy: float) -> None:
    def gradient(mode: meq.Backward) -> Tensor:
        nested, inputs = Nested(mode), attention_inputs(batch=1)
        options = {"solver": meq.Anderson(), "steps": 9, "tol": 1e-9, "backward": mode}
        first = meq.solve(nested, inputs, **options)
        second = meq.solve(nested, {"x": inputs["x"], "y": first.state["z"]}, **options)
        return torch.autograd.grad(first.state["z"].sum() + second.state["z"].square().sum(), nested.inner.weights)[0]

    torch.testing.assert_close(gradient(backward), gradient(meq.Unrolled()), rtol=accuracy, atol=accuracy)


def test_backward_may_run_twice_through_one_implicit_solve() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    solution = meq.solve(operator, inputs, steps=200, tol=1e-12, backward=TIGHT)
    first = torch.autograd.grad(solution.state["x"].sum(), operator.weights, retain_graph=True)[0]
    second = torch.autograd.grad(solution.state["x"].sum(), operator.weights)[0]
    torch.testing.assert_close(first, second)
