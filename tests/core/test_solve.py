from __future__ import annotations

import copy
import math

import pytest
import torch
from problems import PROBLEMS, CoupledAttention, Cubing, attention_inputs, contraction, expansive, rotation, stiff

import meq
from meq import Stop

SOLVERS = [meq.Damped(step=0.5), meq.Anderson(), meq.Broyden()]
by_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)


@by_solver
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in ("stiff", "expansive")])
def test_every_solver_reaches_the_exact_equilibrium(name: str, solver: meq.Solver) -> None:
    problem = PROBLEMS[name]()
    solution = meq.solve(problem.operator, problem.inputs, solver=solver, steps=400, tol=1e-12)
    assert solution.stop == [Stop.SETTLED] * 3
    assert problem.error(solution.state) < 1e-9


def test_a_stiff_pair_is_reached_by_all_and_sooner_by_the_accelerated() -> None:
    taken = {}
    for solver in (meq.Damped(step=1.0), meq.Anderson(), meq.Broyden()):
        problem = stiff()
        solution = meq.solve(problem.operator, problem.inputs, solver=solver, steps=4000, tol=1e-12)
        assert problem.error(solution.state) < 1e-8
        taken[type(solver)] = solution.steps.max().item()
    assert max(taken[meq.Anderson], taken[meq.Broyden]) < taken[meq.Damped] / 20


def test_an_expansive_map_defeats_damping_but_not_anderson_and_broyden() -> None:
    problem = expansive()
    damped = meq.solve(problem.operator, problem.inputs, solver=meq.Damped(), steps=60, tol=1e-9)
    assert set(damped.stop) <= {Stop.DIVERGED, Stop.BUDGET}
    for solver in (meq.Anderson(), meq.Broyden()):
        solution = meq.solve(problem.operator, problem.inputs, solver=solver, steps=60, tol=1e-9)
        assert solution.stop == [Stop.SETTLED] * 3
        assert problem.error(solution.state) < 1e-7


def test_a_long_expansive_run_is_reported_as_diverged_at_its_last_finite_state() -> None:
    problem = expansive(torch.float32)
    solution = meq.solve(problem.operator, problem.inputs, solver=meq.Damped(step=1.0), steps=200, tol=0.0)
    assert solution.stop == [Stop.DIVERGED] * 3
    assert all(z.isfinite().all() for z in solution.state.values())
    assert solution.state["a"].abs().amax() > 1e37, "kept until the very last finite state"
    last = solution.steps[0].item()
    assert solution.residuals["a"][1:last].isfinite().all(), "norms that overflow are still reported"
    assert solution.residuals["a"][last + 1 :].isnan().all()


def test_the_solvers_agree_on_a_nonlinear_coupled_map() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    states = [meq.solve(operator, inputs, solver=solver, steps=300, tol=1e-12).state for solver in SOLVERS]
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=1e-9, atol=1e-9)


def test_residuals_are_those_of_the_undamped_map_before_each_step() -> None:
    problem = contraction()
    solution = meq.solve(problem.operator, problem.inputs, steps=6, tol=0.0, trajectory="all")
    assert solution.trajectory is not None
    for k in range(6):
        state = solution.trajectory[k]
        image = problem.operator(state, problem.inputs)
        for name, z in state.items():
            expected = (z - image[name]).flatten(1).norm(dim=1) / z.flatten(1).norm(dim=1)
            torch.testing.assert_close(solution.residuals[name][k], expected)


def test_a_solve_calls_the_operator_once_per_step_and_the_final_residual_once_more() -> None:
    problem = contraction()
    solution = meq.solve(problem.operator, problem.inputs, steps=7, tol=0.0)
    assert problem.operator.calls == 7
    assert {name: tuple(rows.shape) for name, rows in solution.residuals.items()} == {"image": (7, 3), "text": (7, 3)}
    image = problem.operator(solution.state, problem.inputs)
    z = solution.state["text"]
    expected = (z - image["text"]).flatten(1).norm(dim=1) / z.flatten(1).norm(dim=1)
    torch.testing.assert_close(solution.final_residual["text"], expected.detach())
    assert solution.final_residual is solution.final_residual
    assert problem.operator.calls == 9


def test_the_damping_step_changes_the_path_but_never_the_residual_it_is_judged_by() -> None:
    problem = rotation()
    short = meq.solve(problem.operator, problem.inputs, solver=meq.Damped(step=0.1), steps=2, tol=0.0)
    whole = meq.solve(problem.operator, problem.inputs, solver=meq.Damped(step=1.0), steps=2, tol=0.0)
    assert short.residuals["a"][0].isinf().all()
    assert whole.residuals["a"][0].isinf().all(), "from zero, the relative residual is infinite whatever the step"
    assert (short.residuals["a"][1] > 5 * whole.residuals["a"][1]).all()


def test_a_sample_settles_at_the_first_state_within_the_tolerance() -> None:
    problem = contraction()
    free = meq.solve(problem.operator, problem.inputs, steps=60, tol=0.0, trajectory="all")
    stopped = meq.solve(problem.operator, problem.inputs, steps=60, tol=1e-3)
    assert free.trajectory is not None
    within = torch.stack([rows <= 1e-3 for rows in free.residuals.values()]).all(0)
    for row in range(3):
        k = int(within[:, row].long().argmax())
        assert stopped.steps[row] == k
        assert stopped.stop[row] is Stop.SETTLED
        for name, z in stopped.state.items():
            torch.testing.assert_close(z[row], free.trajectory[k][name][row])
            assert stopped.residuals[name][k, row] <= 1e-3
            assert stopped.residuals[name][k + 1 :, row].isnan().all()


def test_a_sample_that_starts_at_its_equilibrium_takes_no_step() -> None:
    problem = contraction()
    zero = {name: torch.zeros_like(x) for name, x in problem.inputs.items()}
    solution = meq.solve(problem.operator, zero, steps=5, tol=1e-3)
    assert solution.steps.tolist() == [0, 0, 0]
    assert solution.residuals["text"][0].tolist() == [0, 0, 0], "|z| = |T(z)| = 0 is settled, not divergence"


def test_zero_tolerance_takes_exactly_the_steps_asked_for_even_at_a_fixed_point() -> None:
    problem = contraction()
    zero = {name: torch.zeros_like(x) for name, x in problem.inputs.items()}
    solution = meq.solve(problem.operator, zero, steps=5, tol=0.0)
    assert problem.operator.calls == 5
    assert solution.stop == [Stop.BUDGET] * 3
    assert solution.steps.tolist() == [5, 5, 5]


@by_solver
@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_a_sample_does_not_depend_on_its_batch(solver: meq.Solver, dtype: torch.dtype, accuracy: float) -> None:
    operator = CoupledAttention(dtype=dtype)
    inputs = attention_inputs(batch=8, dtype=dtype)
    inputs["x"][1] *= 0.01  # settles far sooner than the others
    together = meq.solve(operator, inputs, solver=solver, steps=40, tol=1e-4)
    assert len(set(together.steps.tolist())) > 1
    for row in range(8):
        one = {name: x[row : row + 1] for name, x in inputs.items()}
        alone = meq.solve(operator, one, solver=solver, steps=40, tol=1e-4)
        assert alone.steps[0] == together.steps[row]
        for name, z in alone.state.items():
            assert relative_error(together.state[name][row], z[0]) < accuracy


@by_solver
@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_padded_tokens_change_no_state_residual_or_gradient(
    solver: meq.Solver, dtype: torch.dtype, accuracy: float
) -> None:
    operator = CoupledAttention(dtype=dtype)
    bare = attention_inputs(dtype=dtype)
    padded = {name: torch.cat([x, 7 * torch.ones(3, 4, 4, dtype=dtype)], dim=1) for name, x in bare.items()}
    masks = {name: torch.arange(x.shape[1] + 4).expand(3, -1) < x.shape[1] for name, x in bare.items()}
    padded |= {f"{name}_mask": mask for name, mask in masks.items()}

    results = []
    for inputs, use in ((bare, None), (padded, masks)):
        solution = meq.solve(operator, inputs, solver=solver, steps=8, tol=1e-6 if dtype.itemsize > 4 else 0, masks=use)
        state = {name: z[:, : bare[name].shape[1]] for name, z in solution.state.items()}
        (gradient,) = torch.autograd.grad(sum(z.square().sum() for z in state.values()), operator.weights)
        results.append((state, solution.residuals, gradient, solution.final_residual))
    (state, residuals, gradient, final), (state_p, residuals_p, gradient_p, final_p) = results
    for name in state:
        assert relative_error(state_p[name], state[name]) < accuracy
        # a residual is a difference of states: its error is judged on the states' scale
        torch.testing.assert_close(residuals_p[name], residuals[name], rtol=accuracy, atol=accuracy, equal_nan=True)
        torch.testing.assert_close(final_p[name], final[name], rtol=accuracy, atol=accuracy)
    assert relative_error(gradient_p, gradient) < accuracy


def test_an_absent_modality_has_no_residual_and_does_not_hold_its_sample_back() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    masks = {"y": torch.tensor([[True, True], [False, False], [True, False]])}
    solution = meq.solve(operator, inputs, steps=80, tol=1e-8, masks=masks)
    assert solution.stop == [Stop.SETTLED] * 3
    assert solution.residuals["y"][:, 1].isnan().all()
    assert solution.residuals["y"][0, [0, 2]].isfinite().all()
    assert solution.final_residual["y"][1].isnan()


def test_a_mask_per_sample_marks_a_vector_as_absent() -> None:
    problem = rotation()
    solution = meq.solve(problem.operator, problem.inputs, steps=3, masks={"a": torch.tensor([True, False, True])})
    assert solution.residuals["a"][:, 1].isnan().all()


@by_solver
def test_a_diverging_sample_is_kept_at_its_last_finite_state_and_leaves_the_others_untouched(
    solver: meq.Solver,
) -> None:
    operator = Cubing()
    inputs = {"a": torch.tensor([[0.5], [1e15], [-0.3]])}
    solution = meq.solve(operator, inputs, solver=solver, steps=30, tol=1e-5)
    assert solution.stop[1] is Stop.DIVERGED
    assert solution.state["a"][1].isfinite().all()
    healthy = {"a": inputs["a"][[0, 2]]}
    alone = meq.solve(operator, healthy, solver=solver, steps=30, tol=1e-5)
    torch.testing.assert_close(solution.state["a"][[0, 2]], alone.state["a"])
    assert solution.steps[[0, 2]].tolist() == alone.steps.tolist()

    with_it, without_it = (torch.autograd.grad(s.state["a"].sum(), operator.scale)[0] for s in (solution, alone))
    assert with_it.isfinite()
    torch.testing.assert_close(with_it, without_it)


@pytest.mark.parametrize("backward", [meq.Unrolled(), meq.Checkpointed(), meq.Implicit(), meq.Phantom(3)])
def test_a_nan_sample_poisons_nobody_under_any_backward(backward: meq.Backward) -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    poisoned = {name: torch.cat([x, x[:1]]) for name, x in inputs.items()}
    poisoned["x"][3, 0, 0] = math.nan
    leaves = {name: x.clone().requires_grad_() for name, x in poisoned.items()}
    clean = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    options = {"steps": 60, "tol": 1e-9, "backward": backward}
    solution, alone = meq.solve(operator, leaves, **options), meq.solve(operator, clean, **options)
    assert solution.stop[3] is Stop.DIVERGED
    assert solution.state["x"][3].isnan().any(), "a start that is not finite has no finite state to fall back on"
    torch.testing.assert_close(solution.state["y"][:3], alone.state["y"])

    healthy = solution.state["x"][:3].square().sum()
    got = torch.autograd.grad(healthy, [operator.weights, leaves["x"], leaves["y"]])
    expected = torch.autograd.grad(alone.state["x"].square().sum(), [operator.weights, clean["x"], clean["y"]])
    torch.testing.assert_close(got[0], expected[0], rtol=1e-8, atol=1e-10)
    for gradient, reference in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(gradient[:3], reference, rtol=1e-8, atol=1e-10)
        assert (gradient[3] == 0).all()


def test_a_batch_that_diverges_altogether_has_no_gradient_but_a_finite_answer() -> None:
    solution = meq.solve(Cubing(), {"a": torch.full((2, 1), 1e15)}, steps=9)
    assert solution.stop == [Stop.DIVERGED] * 2
    assert not solution.state["a"].requires_grad
    assert solution.state["a"].isfinite().all()


def test_the_trajectory_keeps_what_was_asked_for_and_nothing_by_default() -> None:
    problem = contraction()
    assert meq.solve(problem.operator, problem.inputs).trajectory is None
    whole = meq.solve(problem.operator, problem.inputs, steps=4, tol=0.0, trajectory="all")
    some = meq.solve(problem.operator, problem.inputs, steps=4, tol=0.0, trajectory=[3, 0])
    assert whole.trajectory is not None
    assert some.trajectory is not None
    assert list(whole.trajectory) == [0, 1, 2, 3, 4]
    assert list(some.trajectory) == [0, 3]
    torch.testing.assert_close(some.trajectory[3], whole.trajectory[3])
    torch.testing.assert_close(whole.trajectory[4], whole.state)

    seen: dict[int, meq.State] = {}
    meq.solve(problem.operator, problem.inputs, steps=4, tol=0.0, trajectory=lambda k, state: seen.update({k: state}))
    torch.testing.assert_close(seen, whole.trajectory)
    assert not seen[4]["text"].requires_grad


def test_the_trajectory_repeats_the_last_state_of_a_sample_that_stopped_early() -> None:
    problem = contraction()
    solution = meq.solve(problem.operator, problem.inputs, steps=200, tol=1e-3, trajectory=[150, 200])
    assert solution.trajectory is not None
    torch.testing.assert_close(solution.trajectory[150], solution.state)
    torch.testing.assert_close(solution.trajectory[200], solution.state)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_solver_works_in_every_dtype(solver: meq.Solver, dtype: torch.dtype, device: torch.device) -> None:
    operator = CoupledAttention(dtype=dtype).to(device)
    inputs = {name: x.to(device) for name, x in attention_inputs(dtype=dtype).items()}
    tol = 4 * torch.finfo(dtype).eps
    solution = meq.solve(operator, inputs, solver=solver, steps=200, tol=tol)
    assert all(z.dtype == dtype and z.device.type == device.type for z in solution.state.values())
    assert all(rows.dtype in (torch.float32, torch.float64) for rows in solution.residuals.values())
    exact = meq.solve(CoupledAttention(), attention_inputs(), steps=400, tol=0.0)
    for name, z in solution.state.items():
        assert relative_error(z.cpu().double(), exact.state[name]) < 40 * torch.finfo(dtype).eps
    sum(z.sum() for z in solution.state.values()).backward()
    assert operator.weights.grad.isfinite().all()


@by_solver
def test_autocast_keeps_the_state_in_float32(solver: meq.Solver) -> None:
    operator, inputs = CoupledAttention(dtype=torch.float32), attention_inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        solution = meq.solve(operator, inputs, solver=solver, steps=20, tol=0.0)
    exact = meq.solve(operator, inputs, solver=solver, steps=20, tol=0.0)
    for name, z in solution.state.items():
        assert z.dtype == torch.float32
        assert relative_error(z, exact.state[name]) < 0.05
    sum(z.sum() for z in solution.state.values()).backward()
    assert operator.weights.grad.isfinite().all()


def test_a_tolerance_below_the_resolution_of_the_dtype_is_warned_about() -> None:
    operator, inputs = CoupledAttention(dtype=torch.bfloat16), attention_inputs(dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match=r"tol=0.002 is below what torch.bfloat16 can resolve"):
        meq.solve(operator, inputs, tol=2e-3)
    meq.solve(operator, inputs)  # the default is nobody's wish: no warning
    operator, inputs = CoupledAttention(dtype=torch.float32), attention_inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(UserWarning, match="bfloat16"):
        meq.solve(operator, inputs, tol=2e-3)


def test_inference_memory_does_not_grow_with_the_number_of_steps() -> None:
    operator = CoupledAttention(dtype=torch.float32)
    inputs = {name: x.repeat(4, 64, 1) for name, x in attention_inputs(dtype=torch.float32).items()}
    for solver in SOLVERS:
        with torch.no_grad():
            peaks = [peak_bytes(operator, inputs, solver, steps) for steps in (12, 48)]
        assert peaks[1] < 1.1 * peaks[0], f"{solver}: {peaks}"


def peak_bytes(operator: meq.Operator, inputs: dict[str, torch.Tensor], solver: meq.Solver, steps: int) -> int:
    from live_memory import PeakBytes

    with PeakBytes() as memory:
        meq.solve(operator, inputs, solver=solver, steps=steps, tol=0.0)
    return memory.peak


def test_operators_solvers_and_solutions_can_be_deep_copied_after_use() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    step = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    solver = meq.Damped(step=step)
    solution = meq.solve(operator, inputs, solver=solver)
    twin = meq.solve(copy.deepcopy(operator), inputs, solver=copy.deepcopy(solver))
    torch.testing.assert_close(twin.state, solution.state)
    kept = copy.deepcopy(solution.detach())
    torch.testing.assert_close(kept.state, solution.detach().state)
    for each in (*SOLVERS, meq.Unrolled(), meq.Checkpointed(), meq.Implicit(), meq.Phantom(2)):
        assert type(copy.deepcopy(each)) is type(each)


def test_a_solution_prints_itself_as_a_short_table() -> None:
    problem = contraction()
    text = str(meq.solve(problem.operator, problem.inputs, steps=60))
    assert "3 samples: 3 settled" in text
    assert "image" in text
    assert "3x4" in text


def test_the_reason_for_stopping_is_a_sentence() -> None:
    assert str(Stop.BUDGET).startswith("budget: all steps were taken")
    assert len({str(stop) for stop in Stop}) == 4


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()
