from __future__ import annotations

import itertools

import pytest
import torch
from objectives.cases import Constant, Scaled, evaluated, outcome, tokens
from problems import stiff, three_modalities

from meq.objectives import JacobianRange, Objective, evaluation
from meq.objectives.jacobian_range import jacobian_norm

MASK = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])


@pytest.mark.parametrize("masks", [{}, {"text": MASK}, {"text": MASK.any(1)}], ids=["whole", "ragged", "absent"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("probes", [1, 3])
def test_the_identity_gives_exactly_one(masks, dtype, probes):
    inputs = {name: x.to(dtype) for name, x in tokens().items()}
    assert torch.equal(jacobian_norm(evaluated(Scaled(), inputs, masks=masks), probes), torch.ones(3, dtype=dtype))


def test_a_diagonal_map_gives_its_root_mean_square():
    image, text = torch.rand(4, 5).double(), torch.rand(3, 2).double()
    evaluation_ = evaluated(Scaled(image=image, text=text), tokens(), masks={"text": MASK})
    squares = [torch.cat([image.flatten(), text[row].flatten()]).square().mean() for row in MASK]
    torch.testing.assert_close(jacobian_norm(evaluation_, 1), torch.stack(squares).sqrt(), rtol=1e-12, atol=0)


def test_the_mean_over_all_signs_is_the_frobenius_norm(monkeypatch):
    problem = stiff()
    vectors = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=4)), dtype=torch.float64)

    def every_sign(state, masks, *, seeds, probe):
        return problem.operator.split(vectors[probe].expand(3, 4))

    monkeypatch.setattr(evaluation, "draw_signs", every_sign)
    size = jacobian_norm(evaluated(problem.operator, problem.inputs), 16)
    torch.testing.assert_close(size, (problem.operator.jacobian.norm() / 2).expand(3), rtol=1e-12, atol=0)


def test_random_signs_estimate_the_square_without_bias_and_padding_counts_nowhere():
    problem = three_modalities()
    batch = 4000
    inputs = {name: x[:1].expand(batch, *x.shape[1:]) for name, x in problem.inputs.items()}
    mask = torch.tensor([True, True, False]).expand(batch, 3)
    real = torch.ones(17, dtype=torch.bool)
    real[4:6] = False
    squares = jacobian_norm(evaluated(problem.operator, inputs, torch.arange(batch), masks={"image": mask}), 1) ** 2
    exact = problem.operator.jacobian[real][:, real].norm() ** 2 / 15
    assert (squares.mean() - exact).abs() < 4 * squares.std() / batch**0.5
    assert squares.std() > 0.01


@pytest.mark.parametrize(
    ("options", "penalty"),
    [
        ({"low": 0.7, "high": 0.9}, 0.04),
        ({"low": 0.1, "high": 0.3}, 0.04),
        ({"low": 0.4, "high": 0.6}, 0.0),
        ({"low": None, "high": 0.1}, 0.16),
        ({"low": 0.8, "high": None}, 0.09),
        ({"low": None, "high": None}, 0.0),
    ],
)
def test_the_penalty_is_the_squared_distance_to_the_range(options, penalty):
    measured = JacobianRange(**options).measure(evaluated(Scaled(image=0.5, text=0.5), tokens()))
    torch.testing.assert_close(measured.per_sample, torch.full((3,), penalty).double())
    torch.testing.assert_close(measured.statistics["jacobian_norm"], torch.full((3,), 0.5).double())


def test_a_map_that_ignores_its_state_has_norm_zero_and_a_finite_gradient():
    objective = Objective(task="score", penalties=(JacobianRange(),))
    inputs = {name: x.requires_grad_() for name, x in tokens().items()}
    for operator in (Constant(), Scaled(image=0.0, text=0.0)):
        loss = outcome(operator, inputs, objective, steps=2, tol=0)
        assert loss.statistics["jacobian_norm"].tolist() == [0, 0, 0]
        assert torch.autograd.grad(loss.total, inputs["image"])[0].isfinite().all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"low": 0.9, "high": 0.7}, "low < high"),
        ({"low": 0.7, "high": 0.7}, "low < high"),
        ({"low": -0.1}, "low < high"),
        ({"high": float("nan")}, "low < high"),
        ({"probes": 0}, r"JacobianRange\(probes\) must be a whole number of at least 1"),
        ({"probes": True}, "whole number"),
        ({"weight": -1}, r"JacobianRange\(weight\) must be 0 \(off\) or a positive"),
        ({"weight": float("nan")}, "weight"),
    ],
)
def test_wrong_options_are_refused_in_words(options, words):
    with pytest.raises(ValueError, match=words):
        JacobianRange(**options)


def test_an_unknown_option_is_answered_with_the_nearest_one():
    with pytest.raises(TypeError, match="did you mean 'probes'"):
        JacobianRange(probe=1)
