"""Cases for `test_compile.py`, run in a fresh interpreter each."""

from __future__ import annotations

import torch
from problems import CoupledAttention, attention_inputs
from torch import Tensor, nn

import meq
from meq.core.iteration import Problem, take_step
from meq.core.solvers import Memory

SOLVERS = {"Damped": meq.Damped, "Anderson": meq.Anderson, "Broyden": meq.Broyden}


def compiled_step_equals_eager(backend: str, solver_name: str) -> None:
    operator, inputs = CoupledAttention(dtype=torch.float32), attention_inputs(dtype=torch.float32)
    problem = Problem(operator, inputs, {}, SOLVERS[solver_name](), steps=1, tol=0.0)

    def step(state: meq.State, memory: Memory) -> tuple[meq.State, meq.State, Memory]:
        return take_step(problem, state, memory)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    state, memory = operator.start(inputs), None
    twin, twin_memory = state, None
    for _ in range(4):
        state, _, memory = step(state, memory)
        twin, _, twin_memory = compiled(twin, twin_memory)
        torch.testing.assert_close(twin, state)


def compiled_step_has_the_same_gradient(backend: str, solver_name: str) -> None:
    operator, inputs = CoupledAttention(dtype=torch.float32), attention_inputs(dtype=torch.float32)
    problem = Problem(operator, inputs, {}, SOLVERS[solver_name](), steps=1, tol=0.0)

    def step(state: meq.State) -> meq.State:
        return take_step(problem, state)[0]

    gradients = []
    for function in (step, torch.compile(step, fullgraph=True, backend=backend)):
        state = function(operator.start(inputs))
        (gradient,) = torch.autograd.grad(sum(z.square().sum() for z in state.values()), operator.weights)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)


class FixedDepth(nn.Module):
    """Inference at fixed K, as it would be deployed."""

    def __init__(self, solver: meq.Solver) -> None:
        super().__init__()
        self.operator, self.solver = CoupledAttention(dtype=torch.float32), solver

    def forward(self, x: Tensor, y: Tensor) -> tuple[meq.State, dict[str, Tensor], Tensor, Tensor]:
        solution = meq.solve(self.operator, {"x": x, "y": y}, solver=self.solver, steps=5, tol=0.0)
        return solution.state, solution.residuals, solution.steps, solution.stop_codes


def exported_solve_equals_eager(solver_name: str) -> None:
    module = FixedDepth(SOLVERS[solver_name]()).eval()
    inputs, others = attention_inputs(dtype=torch.float32), attention_inputs(batch=5, dtype=torch.float32, seed=9)
    batch = torch.export.Dim("batch", min=2)
    with torch.no_grad():
        program = torch.export.export(module, (inputs["x"], inputs["y"]), dynamic_shapes=({0: batch}, {0: batch}))
        torch.testing.assert_close(program.module()(others["x"], others["y"]), module(others["x"], others["y"]))


def compiled_whole_solve_equals_eager() -> None:
    module = FixedDepth(meq.Damped())
    inputs = attention_inputs(dtype=torch.float32)
    with torch.no_grad():
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(inputs["x"], inputs["y"]), module(inputs["x"], inputs["y"]))


def a_compiled_operator_can_be_solved() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    compiled = torch.compile(operator, backend="aot_eager")
    torch.testing.assert_close(meq.solve(compiled, inputs).state, meq.solve(operator, inputs).state)


def one_step_of_every_solver_compiles() -> None:
    for name in SOLVERS:
        torch._dynamo.reset()
        compiled_step_equals_eager("aot_eager", name)
    torch._dynamo.reset()
    compiled_step_has_the_same_gradient("aot_eager", "Damped")


def fixed_depth_inference_of_every_solver_exports() -> None:
    for name in SOLVERS:
        exported_solve_equals_eager(name)


def whole_solves_and_operators_compile() -> None:
    compiled_whole_solve_equals_eager()
    torch._dynamo.reset()
    a_compiled_operator_can_be_solved()
