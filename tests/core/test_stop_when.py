"""Another reason to stop, inside the one loop."""

from __future__ import annotations

import math

import pytest
import torch
from problems import Affine, contraction, expansive
from torch import Tensor

import meq
from meq import Stop
from meq.core.iteration import AtSteps


class Halving(meq.Operator):
    """T(z) = z / 2 + b / 2 from z(0) = 0, so that z(k) = b (1 - 2^-k) and the residual of z(k) is 1 / (2 (2^k - 1))."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def start(self, inputs: Tensor) -> meq.State:
        return {"z": torch.zeros_like(inputs)}

    def forward(self, state: meq.State, inputs: Tensor) -> meq.State:
        self.calls += 1
        return {"z": (state["z"] + inputs) / 2}


class AtResidual:
    by_residual = True

    def __init__(self, threshold: Tensor) -> None:
        self.threshold = threshold

    def __call__(self, k: int, seen: meq.State, active: Tensor) -> Tensor:
        return torch.stack(list(seen.values())).amax(0) <= self.threshold


class AtStep:
    by_residual = False

    def __init__(self, steps: list[int]) -> None:
        self.steps, self.asked = torch.tensor(steps), []

    def __call__(self, k: int, seen: meq.State, active: Tensor) -> Tensor:
        self.asked.append((k, active.tolist(), {name: z.clone() for name, z in seen.items()}))
        return self.steps <= k


PLAIN = meq.Damped(step=1.0)


@torch.no_grad()
def test_a_sample_stops_at_the_first_state_whose_residual_is_small_enough() -> None:
    thresholds = torch.tensor([0.6, 0.2, 0.01, 1e-9], dtype=torch.float64)
    found = meq.solve(
        Halving(), torch.ones(4, 1).double(), solver=PLAIN, steps=12, tol=0.0, stop_when=AtResidual(thresholds)
    )
    expected = [math.ceil(math.log2(1 + 1 / (2 * each))) for each in (0.6, 0.2, 0.01)]
    assert found.steps.tolist() == [*expected, 12]
    assert found.stop == [Stop.READ] * 3 + [Stop.BUDGET]
    assert found.state["z"][:, 0].tolist() == [1 - 2.0**-k for k in (*expected, 12)]
    assert found.residuals["z"][expected[1], 1] <= 0.2 < found.residuals["z"][expected[1] - 1, 1]
    assert found.residuals["z"][expected[1] + 1 :, 1].isnan().all()


@torch.no_grad()
def test_a_rule_that_looks_at_states_is_asked_before_the_next_call_and_saves_it() -> None:
    operator, rule = Halving(), AtStep([2, 4, 3])
    found = meq.solve(operator, torch.ones(3, 1).double(), solver=PLAIN, steps=12, tol=0.0, stop_when=rule)
    assert found.steps.tolist() == [2, 4, 3]
    assert operator.calls == 4
    assert [k for k, *_ in rule.asked] == [0, 1, 2, 3, 4]
    assert [active for _, active, _ in rule.asked][3:] == [[False, True, True], [False, True, False]]
    assert [seen["z"][1].item() for *_, seen in rule.asked] == [1 - 2.0**-k for k in range(5)]
    assert found.state["z"][:, 0].tolist() == [1 - 2.0**-k for k in (2, 4, 3)]


@torch.no_grad()
def test_a_rule_may_stop_everybody_at_the_start() -> None:
    found = meq.solve(Halving(), torch.ones(2, 1), steps=5, stop_when=AtStep([0, 0]), trajectory="all")
    assert found.steps.tolist() == [0, 0]
    assert found.residuals["z"].shape == (5, 2)
    assert found.residuals["z"].isnan().all()
    assert set(found.trajectory or {}) == set(range(6))


@torch.no_grad()
@pytest.mark.parametrize("solver", [meq.Damped(), meq.Anderson(), meq.Broyden()], ids=lambda each: type(each).__name__)
def test_a_rule_that_is_never_satisfied_changes_no_bit(solver: meq.Solver) -> None:
    problem = contraction(torch.float32)
    plain = meq.solve(problem.operator, problem.inputs, solver=solver, steps=9, tol=1e-3)
    for rule in (AtStep([99] * 3), AtResidual(torch.tensor(-1.0))):
        ruled = meq.solve(problem.operator, problem.inputs, solver=solver, steps=9, tol=1e-3, stop_when=rule)
        assert all(torch.equal(ruled.state[name], z) for name, z in plain.state.items())
        assert all(
            torch.equal(ruled.residuals[name].nan_to_num(7), x.nan_to_num(7)) for name, x in plain.residuals.items()
        )
        assert ruled.stop == plain.stop
        assert torch.equal(ruled.steps, plain.steps)


@torch.no_grad()
def test_who_stops_early_leaves_the_others_as_they_were() -> None:
    problem = contraction()
    plain = meq.solve(problem.operator, problem.inputs, steps=7, tol=0.0)
    ruled = meq.solve(problem.operator, problem.inputs, steps=7, tol=0.0, stop_when=AtStep([99, 2, 99]))
    assert ruled.steps.tolist() == [7, 2, 7]
    for name, z in plain.state.items():
        assert torch.equal(ruled.state[name][[0, 2]], z[[0, 2]])


@torch.no_grad()
def test_a_sample_that_settled_or_diverged_is_not_called_read() -> None:
    found = meq.solve(
        Halving(), torch.ones(2, 1).double(), solver=PLAIN, steps=30, tol=0.2, stop_when=AtResidual(torch.tensor(0.2))
    )
    assert found.stop == [Stop.SETTLED] * 2
    problem = expansive(torch.float32)
    lost = meq.solve(
        problem.operator, problem.inputs, solver=PLAIN, steps=200, tol=0.0, stop_when=AtResidual(torch.tensor(math.inf))
    )
    assert lost.stop == [Stop.READ] * 3, "the start is finite, and any residual is small enough"
    lost = meq.solve(problem.operator, problem.inputs, solver=PLAIN, steps=200, tol=0.0, stop_when=AtStep([199] * 3))
    assert lost.stop == [Stop.DIVERGED] * 3


def test_a_rule_is_for_answers_and_not_for_training() -> None:
    problem: Affine = contraction().operator
    with pytest.raises(ValueError, match="not for training"):
        meq.solve(problem, contraction().inputs, stop_when=AtStep([1] * 3))


def test_steps_that_are_known_before_go_with_gradients_but_not_with_those_of_the_last_steps() -> None:
    halves = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
    rule = AtSteps(torch.tensor([1, 3, 2]))
    meq.solve(Halving(), halves, solver=PLAIN, steps=3, tol=0.0, stop_when=rule).state["z"].sum().backward()
    assert halves.grad[:, 0].tolist() == [1 - 2.0**-k for k in (1, 3, 2)]
    with pytest.raises(ValueError, match="samples that stop before them have none"):
        meq.solve(Halving(), halves, steps=3, stop_when=rule, backward=meq.Phantom(1))


@torch.no_grad()
def test_where_there_are_no_values_nobody_is_asked() -> None:
    rule = AtStep([1, 1])
    found = meq.solve(Halving(), torch.ones(2, 1, device="meta"), steps=3, stop_when=rule)
    assert rule.asked == []
    assert found.steps.shape == (2,)


def test_codes_of_older_reasons_stay() -> None:
    assert [stop.code for stop in (Stop.SETTLED, Stop.BUDGET, Stop.DIVERGED, Stop.READ)] == [0, 1, 2, 3]
