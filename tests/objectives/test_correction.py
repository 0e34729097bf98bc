from __future__ import annotations

import pytest
import torch
from objectives.cases import Constant, Scaled, evaluated, outcome, tokens

import meq
from meq.objectives import Objective, ResidualCorrection


def test_the_penalty_is_half_the_sum_of_relative_residuals():
    measured = ResidualCorrection().measure(evaluated(Scaled(image=0.5, text=1.25), tokens()))
    torch.testing.assert_close(measured.per_sample, torch.full((3,), (0.5 + 0.25) / 2).double())


def test_absent_modalities_are_left_out():
    masks = {"text": torch.tensor([[True, False, False], [False, False, False], [True, True, True]])}
    measured = ResidualCorrection().measure(evaluated(Scaled(image=0.5, text=1.25), tokens(), masks=masks))
    torch.testing.assert_close(measured.per_sample, torch.tensor([0.375, 0.25, 0.375]).double())


@pytest.mark.parametrize("operator", [Scaled(), Constant()], ids=["at rest", "moving"])
def test_a_state_of_zero_counts_nothing_and_has_a_finite_gradient(operator):
    class FromZero(type(operator)):
        def start(self, inputs: meq.State) -> meq.State:
            return {name: 0 * x for name, x in inputs.items()}

    inputs = {name: x.requires_grad_() for name, x in tokens().items()}
    objective = Objective(task="score", penalties=(ResidualCorrection(weight=1.0),))
    loss = outcome(FromZero(), inputs, objective, solver=meq.Damped(step=1e-300), steps=1, tol=0)
    assert loss.terms["residual"] == 0
    loss.total.backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in inputs.values())


def test_a_map_at_its_fixed_point_has_a_finite_gradient():
    inputs = {name: x.requires_grad_() for name, x in tokens().items()}
    loss = outcome(Scaled(), inputs, Objective(task="score", penalties=(ResidualCorrection(),)), steps=1, tol=0)
    assert loss.terms["residual"] == 0
    loss.total.backward()
    assert inputs["image"].grad.isfinite().all()


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match=r"ResidualCorrection\(weight\)"):
        ResidualCorrection(weight=-0.1)
