"""Penalties by name: what is registered, and one of somebody's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields

import pytest
import torch
from objectives.cases import TARGET, Constant, Scaled, evaluated, loss_of, outcome, small_model, tokens
from problems import Affine, rotation, stiff, three_modalities

import meq
from meq.objectives import (
    PENALTIES,
    CrossFloor,
    Evaluation,
    JacobianRange,
    Objective,
    Penalty,
    PenaltyValues,
    ResidualCorrection,
    probe,
    register_penalty,
)
from meq.objectives.penalties import block_sizes, jacobian_norm


@pytest.fixture
def largest_state() -> Iterator[type[Penalty]]:
    @register_penalty("largest-state")
    @dataclass(frozen=True)
    class LargestState(Penalty):
        weight: float = 2.0

        def measure(self, evaluation: Evaluation) -> PenaltyValues:
            return PenaltyValues(next(iter(evaluation.size.values())))

    yield LargestState
    PENALTIES.remove("largest-state")


def test_names_and_options_can_be_listed():
    options = {name: [each.name for each in fields(PENALTIES.get(name))] for name in PENALTIES}
    assert options["jacobian-range"] == ["low", "high", "probes", "weight"]
    assert options["residual-correction"] == ["weight"]
    assert options["cross-floor"] == ["floors", "weight", "probes"]


def test_one_of_your_own_is_a_term_under_the_name_it_is_registered_by(largest_state: type[Penalty]):
    assert PENALTIES.get("largest-state") is largest_state
    loss = loss_of(small_model(), Objective(penalties=(largest_state(),)))
    assert set(loss.terms) == {"largest-state"}
    assert loss.total.item() == pytest.approx((loss.task + 2 * loss.terms["largest-state"]).item())
    assert len(loss.per_sample) == len(TARGET)


def test_a_name_is_given_once_and_to_a_dataclass(largest_state: type[Penalty]):
    with pytest.raises(ValueError, match="there is a penalty 'largest-state' already: choose another name"):
        register_penalty("largest-state")(dataclass(frozen=True)(type("Other", (largest_state,), {})))

    class Bare(Penalty):
        def measure(self, evaluation: Evaluation) -> PenaltyValues:
            raise NotImplementedError

    with pytest.raises(TypeError, match="the penalty Bare must be a dataclass, so that its options are known"):
        register_penalty("bare")(Bare)


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

    monkeypatch.setattr(probe, "draw_signs", every_sign)
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


def exact_sizes(operator: Affine) -> dict[str, torch.Tensor]:
    """|J_ab|_F / sqrt(n_a) from the matrix itself."""
    counts = [torch.Size(shape).numel() for shape in operator.shapes.values()]
    rows = dict(zip(operator.shapes, operator.jacobian.detach().split(counts), strict=True))
    blocks = {a: dict(zip(operator.shapes, row.split(counts, dim=1), strict=True)) for a, row in rows.items()}
    return {f"{a}<-{b}": blocks[a][b].norm() / len(rows[a]) ** 0.5 for a in rows for b in rows}


def test_the_mean_over_all_signs_is_the_norm_of_each_block(monkeypatch):
    operator, inputs = stiff().operator, stiff().inputs
    vectors = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=4)), dtype=torch.float64)

    def every_sign(state, masks, *, seeds, probe):
        return operator.split(vectors[probe].expand(3, 4))

    monkeypatch.setattr(probe, "draw_signs", every_sign)
    sizes = block_sizes(evaluated(operator, inputs), 16)
    for pair, expected in exact_sizes(operator).items():
        torch.testing.assert_close(sizes[pair], expected.expand(3), rtol=1e-12, atol=0)


def test_random_signs_estimate_the_squares_of_three_modalities_without_bias():
    operator, batch = three_modalities().operator, 4000
    inputs = {name: x[:1].expand(batch, *x.shape[1:]) for name, x in three_modalities().inputs.items()}
    sizes = block_sizes(evaluated(operator, inputs, torch.arange(batch)), 1)
    for pair, expected in exact_sizes(operator).items():
        squares = sizes[pair] ** 2
        assert (squares.mean() - expected**2).abs() < 4 * squares.std() / batch**0.5, pair


def test_each_pair_below_its_floor_adds_what_it_lacks():
    problem = rotation(scale=0.3)  # both blocks off the diagonal are 0.3, both on it are 0
    here = evaluated(problem.operator, problem.inputs)
    for floors, penalty in [(0.5, 0.4), (0.2, 0.0), ({"a<-b": 0.5}, 0.2), ({"a<-b": 0.4, "b<-a": 1.0}, 0.8)]:
        torch.testing.assert_close(CrossFloor(floors).measure(here).per_sample, torch.full((3,), penalty).double())
    statistics = CrossFloor(0.5).measure(here).statistics
    assert list(statistics) == ["self/a", "cross/a<-b", "cross/b<-a", "self/b"]
    torch.testing.assert_close(statistics["cross/a<-b"], torch.full((3,), 0.3).double())
    assert statistics["self/a"].tolist() == [0, 0, 0]


def test_a_sample_that_lacks_a_modality_is_left_out_of_its_pairs():
    masks = {"text": torch.tensor([[True, False, False], [False, False, False], [True, True, True]])}
    measured = CrossFloor(0.5).measure(evaluated(Scaled(), tokens(), masks=masks))
    assert measured.per_sample.tolist() == [1.0, 0.0, 1.0]
    assert measured.statistics["cross/image<-text"].isnan().tolist() == [False, True, False]
    assert measured.statistics["self/text"].isnan().tolist() == [False, True, False]
    assert measured.statistics["self/image"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("floors", "words"),
    [
        (-0.1, "at least 0"),
        ({"image<-text": float("nan")}, "at least 0"),
        ({"image": 0.1}, "written like 'image<-text'"),
    ],
)
def test_wrong_floors_are_refused_in_words(floors, words):
    with pytest.raises(ValueError, match=words):
        CrossFloor(floors)


@pytest.mark.parametrize(
    ("floors", "words"),
    [
        ({"image<-txt": 0.1}, "unknown pair 'image<-txt': did you mean 'image<-text'"),
        ({"image<-image": 0.1}, "unknown pair 'image<-image'"),
        ({}, "no floors"),
    ],
)
def test_pairs_that_the_state_does_not_have_are_refused_in_words(floors, words):
    with pytest.raises(ValueError, match=words):
        CrossFloor(floors).measure(evaluated(Scaled(), tokens()))


def test_a_single_state_has_no_pair_to_hold():
    with pytest.raises(ValueError, match="at least two coupled states"):
        CrossFloor(0.1).measure(evaluated(Scaled(), {"joint": tokens()["image"]}))


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"CrossFloor\(probes\)"):
        CrossFloor(0.1, probes=0)
    with pytest.raises(ValueError, match=r"CrossFloor\(weight\)"):
        CrossFloor(0.1, weight=-1)
    with pytest.raises(TypeError, match="did you mean 'floors'"):
        CrossFloor(floor=0.1)
