from __future__ import annotations

import pytest
import torch
from models.zoo import features_for, ragged_masks
from objectives.cases import SEEDS, Constant, evaluated, small_model, tokens
from problems import Cubing, contraction

import meq
from meq.objectives import Evaluation
from meq.objectives.probe import draw_signs, mixed

SOME_SEEDS = torch.tensor([3, 2**33, -8])


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


def test_signs_are_plus_or_minus_one_and_zero_on_padding():
    state = tokens()
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    signs = draw_signs(state, {"text": mask}, seeds=SOME_SEEDS, probe=0)
    assert torch.equal(signs["image"].abs(), torch.ones(3, 4, 5).double())
    assert torch.equal(signs["text"].abs(), mask[..., None].expand(3, 3, 2).double())


def test_more_tokens_do_not_change_the_signs_of_the_first_ones():
    long = {"image": torch.zeros(3, 40, 5), "text": torch.zeros(3, 9, 2)}
    for length in (1, 7, 16, 33):
        short = {name: z[:, :length] for name, z in long.items()}
        few, many = draw_signs(short, {}, seeds=SOME_SEEDS, probe=1), draw_signs(long, {}, seeds=SOME_SEEDS, probe=1)
        assert all(torch.equal(few[name], many[name][:, :length]) for name in long)


def test_neighbours_do_not_change_a_samples_signs():
    state = tokens()
    alone = {name: z[1:2] for name, z in state.items()}
    together, single = (draw_signs(s, {}, seeds=k, probe=0) for s, k in ((state, SOME_SEEDS), (alone, SOME_SEEDS[1:2])))
    assert all(torch.equal(together[name][1:2], single[name]) for name in state)


def test_seeds_modalities_probes_and_dropout_all_draw_differently():
    state = {"a": torch.zeros(2, 10_000), "b": torch.zeros(2, 10_000)}
    seeds = torch.tensor([0, 1])
    first, second = (draw_signs(state, {}, seeds=seeds, probe=probe) for probe in (0, 1))
    dropout = 2 * (torch.rand(10_000, generator=torch.Generator().manual_seed(0)) >= 0.5).float() - 1
    streams = torch.stack([*first["a"], *first["b"], *second["a"], dropout])
    overlap = (streams @ streams.T / 10_000).fill_diagonal_(0)
    assert overlap.abs().max() < 0.05


def test_the_upper_half_of_a_seed_reaches_the_lower_half():
    """torch's CPU generator looks at the lower 32 bits only."""
    assert len({mixed(seed << 32, 0) & 0xFFFFFFFF for seed in range(1000)}) == 1000
    assert mixed(-1, 5) == mixed(2**64 - 1, 5)


def test_without_seeds_the_global_generator_draws():
    draws = []
    for _ in range(2):
        torch.manual_seed(4)
        draws.append(draw_signs({"a": torch.zeros(2, 30)}, {}, seeds=None, probe=0)["a"])
    assert torch.equal(*draws)
    assert draws[0].unique().tolist() == [-1, 1]
