"""The engine says and does the same at every magnitude that the dtype can hold."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from problems import PROBLEMS, Known, contraction, rotation

import meq
from meq import Stop
from meq.core.solution import residual
from meq.core.state import norm, sound_norm

SOLVERS = [meq.Damped(step=0.5), meq.Anderson(), meq.Broyden(), meq.Broyden(history=3)]
EXPONENTS = (83, -83, 110, -100)
"""2^83 is about 1e25, 2^-83 about 1e-25."""
by_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: f"{solver}")


def scaled(problem: Known, factor: float) -> dict[str, torch.Tensor]:
    return {name: x * factor for name, x in problem.inputs.items()}


@by_solver
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "expansive"])
@pytest.mark.parametrize("tol", [1e-5, 0.0])
def test_an_affine_problem_is_solved_alike_at_every_magnitude(
    name: str, exponent: int, solver: meq.Solver, tol: float
) -> None:
    """Powers of two scale without rounding, so only the norms, which are computed differently, may differ at all."""
    problem, factor = PROBLEMS[name](torch.float32), 2.0**exponent
    options: dict[str, Any] = {"solver": solver, "steps": 12, "tol": tol}
    plain = meq.solve(problem.operator, problem.inputs, **options)
    large = meq.solve(problem.operator, scaled(problem, factor), **options)
    assert large.stop == plain.stop
    assert torch.equal(large.steps, plain.steps)
    for modality, z in plain.state.items():
        torch.testing.assert_close(large.state[modality] / factor, z, rtol=1e-4, atol=1e-5)
        first = slice(0, 3)  # later rows are what rounding leaves
        found, expected = large.residuals[modality][first], plain.residuals[modality][first]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
        final, expected = large.final_residual[modality], plain.final_residual[modality]
        torch.testing.assert_close(final, expected, rtol=0.05, atol=1e-5)


@by_solver
def test_a_start_far_from_one_is_measured_as_it_is(solver: meq.Solver) -> None:
    """From a start of 1e25, whose plain norm is infinite, everything would seem to have settled."""

    class Warm(type(contraction().operator)):  # type: ignore[misc]
        def start(self, inputs: Any) -> Any:
            return {name: 3 * x for name, x in inputs.items()}

    problem = contraction(torch.float32)
    operator = Warm(problem.operator.jacobian.detach(), problem.operator.shapes)
    for exponent in EXPONENTS:
        solution = meq.solve(operator, scaled(problem, 2.0**exponent), solver=solver, steps=200, tol=1e-5)
        assert solution.stop == [Stop.SETTLED] * 3
        assert (solution.steps > 5).all()
        assert problem.error({name: z / 2.0**exponent for name, z in solution.state.items()}) < 1e-4


@by_solver
@pytest.mark.parametrize("exponent", [60, -60])
def test_gradients_are_alike_at_every_magnitude(solver: meq.Solver, exponent: int) -> None:
    found = []
    for factor in (1.0, 2.0**exponent):
        problem = contraction(torch.float32)
        inputs = {name: x.requires_grad_() for name, x in scaled(problem, factor).items()}
        state = meq.solve(problem.operator, inputs, solver=solver, steps=8, tol=0.0).state
        (gradient,) = torch.autograd.grad(sum(z.sum() for z in state.values()), [inputs["image"]])
        found.append(gradient)
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", [meq.Anderson(), meq.Broyden()])
def test_the_adjoint_of_a_tiny_or_huge_loss_is_solved_as_well(solver: meq.Solver) -> None:
    found = []
    for factor in (1.0, 2.0**-83, 2.0**83):
        problem = contraction(torch.float32)
        inputs = {name: x.clone().requires_grad_() for name, x in problem.inputs.items()}
        backward = meq.Implicit(solver=solver)
        solution = meq.solve(problem.operator, inputs, solver=solver, steps=100, tol=1e-6, backward=backward)
        loss = sum((z * factor).sum() for z in solution.state.values())
        (gradient,) = torch.autograd.grad(loss, [inputs["image"]])
        assert solution.adjoint is not None
        assert solution.adjoint.stop is not None
        assert Stop.DIVERGED not in solution.adjoint.stop
        found.append(gradient / factor)
    for gradient in found[1:]:
        torch.testing.assert_close(gradient, found[0], rtol=1e-3, atol=1e-4)


@by_solver
def test_a_huge_or_tiny_sample_leaves_its_neighbours_alone(solver: meq.Solver) -> None:
    problem = rotation(torch.float32)
    factors = torch.tensor([1.0, 2.0**83, 2.0**-83])
    inputs = {name: x * factors[:, None] for name, x in problem.inputs.items()}
    mixed = meq.solve(problem.operator, inputs, solver=solver, steps=30, tol=1e-5)
    plain = meq.solve(problem.operator, problem.inputs, solver=solver, steps=30, tol=1e-5)
    assert torch.equal(mixed.steps, plain.steps)
    for name, z in plain.state.items():
        torch.testing.assert_close(mixed.state[name] / factors[:, None], z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1e25, 1e-25, 1.0, 1e-40])
def test_a_sound_norm_is_right_at_every_magnitude(value: float) -> None:
    x = torch.full((2, 9), value)
    x[1] = 1.0
    torch.testing.assert_close(sound_norm(x), torch.tensor([3 * x[0, 0].item(), 3.0]), rtol=1e-5, atol=0)
    usual = torch.randn(4, 5, 6)
    assert torch.equal(sound_norm(usual), norm(usual)), "no bit changes where plain norms serve"
    assert residual(x / 2, x, None)[0].item() == pytest.approx(0.0 if value == 0 else 0.5, rel=1e-3)


class Wild(meq.Operator):
    """A map that is finite where its derivative is not: sqrt at 0 for the samples that are told to go there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.5))

    def start(self, inputs: Any) -> Any:
        return {"z": inputs["x"]}

    def forward(self, state: Any, inputs: Any) -> Any:
        return {"z": self.weight * state["z"] + 0.1 * (state["z"] * inputs["soft"]).sqrt()}


@pytest.mark.parametrize("backward", [meq.Unrolled(), meq.Checkpointed(), meq.Phantom(2), meq.Implicit()])
def test_a_gradient_that_is_not_finite_is_reported_as_divergence(backward: meq.Backward) -> None:
    inputs = {"x": torch.ones(3, 2, requires_grad=True), "soft": torch.tensor([[1.0], [0.0], [1.0]])}
    solution = meq.solve(Wild(), inputs, steps=4, tol=0.0, backward=backward)
    assert solution.stop == [Stop.BUDGET] * 3, "the states themselves are finite"
    with pytest.warns(RuntimeWarning, match=r"diverged"):
        solution.state["z"].sum().backward()


def test_a_gradient_that_outgrows_the_dtype_is_reported_with_its_samples() -> None:
    problem = PROBLEMS["expansive"](torch.float32)
    inputs = {name: x.clone().requires_grad_() for name, x in problem.inputs.items()}
    solution = meq.solve(problem.operator, inputs, solver=meq.Damped(step=1.0), steps=40, tol=0.0)
    weights = torch.tensor([1.0, 1e30, 1.0])[:, None]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (solution.state["a"] * weights).sum().backward()
    words = [str(each.message) for each in said]
    assert any("the gradient diverged" in each and "to 'a' is not finite for samples [1]," in each for each in words)


def test_finite_gradients_are_not_remarked_upon_however_they_are_taken() -> None:
    problem = contraction()
    inputs = {name: x.clone().requires_grad_() for name, x in problem.inputs.items()}

    def total(image: torch.Tensor) -> torch.Tensor:
        return meq.solve(problem.operator, {**inputs, "image": image}, steps=5).state["image"].sum((1, 2))

    rows = torch.autograd.functional.jacobian(total, inputs["image"], vectorize=True)
    by_func = torch.func.jacrev(total)(inputs["image"].detach())
    one_by_one = torch.autograd.functional.jacobian(total, inputs["image"])
    torch.testing.assert_close(rows, one_by_one)
    torch.testing.assert_close(by_func, one_by_one)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@by_solver
def test_half_precision_states_are_solved_as_well_as_they_can_be(solver: meq.Solver, dtype: torch.dtype) -> None:
    problem = contraction(dtype, radius=0.5)
    solution = meq.solve(problem.operator, problem.inputs, solver=solver, steps=40, tol=0.02)
    assert all(z.dtype == dtype for z in solution.state.values())
    exact = contraction(torch.float64, radius=0.5)
    assert exact.error({name: z.double() for name, z in solution.state.items()}) < 0.1


def test_inputs_on_two_devices_are_named_with_their_devices() -> None:
    problem = contraction()
    far = {**problem.inputs, "text": problem.inputs["text"].to("meta")}
    with pytest.raises(ValueError, match=r"\['text'\] is on meta"):
        meq.solve(problem.operator, far)

    class Adding(meq.Operator):
        def start(self, inputs: Any) -> Any:
            return {"a": inputs["a"] + inputs["b"]}

        def forward(self, state: Any, inputs: Any) -> Any:
            return {"a": state["a"] / 2}

    with pytest.raises(ValueError, match=r"inputs\['a'\] is on cpu and inputs\['b'\] is on meta: move everything"):
        meq.solve(Adding(), {"a": torch.ones(2, 3), "b": torch.ones(2, 3, device="meta")})
    assert meq.solve(Adding(), {"a": torch.ones(2, 3), "b": torch.tensor(1.0)}).stop


@pytest.mark.parametrize("spoilt", [None, "text", 3.0])
def test_a_map_that_returns_no_tensor_is_named(spoilt: Any) -> None:
    class Spoiling(meq.Operator):
        def start(self, inputs: Any) -> Any:
            return {"a": inputs["a"]}

        def forward(self, state: Any, inputs: Any) -> Any:
            return {"a": spoilt}

    kind = type(spoilt).__name__
    with pytest.raises(TypeError, match=rf"the operator Spoiling returned {kind} for 'a', not a tensor"):
        meq.solve(Spoiling(), {"a": torch.ones(2, 3)})
