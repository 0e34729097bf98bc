from __future__ import annotations

import pytest
import torch
from models.zoo import features_for, ragged_masks
from objectives.cases import SEEDS, Constant, evaluated, small_model, tokens
from problems import Cubing, contraction

import meq
from meq.objectives import Evaluation
from meq.objectives.probes import draw_signs


def test_blocks_sum_to_the_product():
    problem = contraction()
    solution = meq.solve(problem.operator, problem.inputs, steps=2, tol=0)
    whole, split = (Evaluation.at(problem.operator, solution, seeds=torch.arange(3), split=split) for split in (0, 1))
    for probe in range(2):
        torch.testing.assert_close(whole.product(probe), split.product(probe), rtol=0, atol=1e-14)
    signs = draw_signs(solution.state, {}, seeds=torch.arange(3), probe=0)
    expected = problem.operator.flat(signs) @ problem.operator.jacobian
    torch.testing.assert_close(problem.operator.flat(split.product(0)), expected)


def test_residuals_are_the_solutions_own():
    model = small_model()
    solution = model(features_for(model), ragged_masks(model)).solution
    residuals = Evaluation.at(model.operator, solution).residuals
    torch.testing.assert_close(residuals, solution.final_residual, equal_nan=True)
    assert residuals["text"].isnan().tolist() == [False, False, True, False]


def test_what_the_inputs_share_with_the_state_is_no_part_of_the_jacobian():
    class Reading(Constant):
        def forward(self, state: meq.State, inputs: meq.State) -> meq.State:
            return {name: 0.5 * z + inputs[name] for name, z in state.items()}

    start = {name: z.requires_grad_() for name, z in tokens().items()}
    solution = meq.solve(Reading(), start, steps=1, tol=1e9)  # settles where it starts
    solution = meq.Solution(start, solution.residuals, solution.steps, solution.stop_codes, start, {})
    evaluation = Evaluation.at(Reading(), solution)
    torch.testing.assert_close(evaluation.product(0)["text"].abs(), torch.full((3, 3, 2), 0.5).double())


def test_samples_that_diverged_and_those_that_would_are_left_out():
    inputs = {"a": torch.tensor([[0.3, 0.4], [1e40, 0.0], [1e160, 0.0], [0.5, 0.2]], dtype=torch.float64)}
    evaluation = evaluated(Cubing().double(), inputs, solver=meq.Damped(step=1.0), steps=1)
    assert evaluation.kept.tolist() == [True, False, False, True]
    assert evaluation.everyone(torch.tensor([1.0, 2.0])).isnan().tolist() == [False, True, True, False]
    assert evaluation.mean(torch.tensor([1.0, 2.0])).item() == 0.75


@pytest.mark.usefixtures("unchecked")
def test_seeds_must_be_one_whole_number_per_sample():
    for seeds in (torch.rand(3), torch.arange(2), torch.arange(3)[:, None], torch.arange(0)):
        with pytest.raises(ValueError, match="one per sample"):
            evaluated(Constant(), tokens(), seeds)


def test_inference_mode_is_refused_in_words():
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"use torch.no_grad\(\)"):
        evaluated(Constant(), tokens())


def test_without_gradients_the_numbers_are_the_same_and_carry_none():
    model = small_model()
    with_graph = Evaluation.at(model.operator, model(features_for(model)).solution, seeds=SEEDS)
    with torch.no_grad():
        without = Evaluation.at(model.operator, model(features_for(model)).solution, seeds=SEEDS)
        product, gap = without.product(0), without.gap
    torch.testing.assert_close(product, with_graph.product(0), rtol=0, atol=1e-14)
    torch.testing.assert_close(gap, with_graph.gap, rtol=0, atol=1e-14)
    assert not any(x.requires_grad for x in [*product.values(), *gap.values()])
