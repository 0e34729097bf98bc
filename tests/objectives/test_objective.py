"""The whole objective: task, all penalties, and one evaluation that they share."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from models.zoo import MODELS, build, features_for, ragged_masks
from objectives.cases import FULL, PENALTIES, SEEDS, TARGET, gradients, loss_of, outcome, small_model
from problems import Cubing
from torch import Tensor

import meq
from meq.objectives import CrossFloor, JacobianRange, Objective, ResidualCorrection

TASK_ONLY = Objective(task="classes")
SWITCHED_OFF = replace(FULL, penalties=tuple(replace(penalty, weight=0) for penalty in PENALTIES))


def test_the_total_is_the_task_and_the_weighted_terms():
    loss = loss_of(small_model())
    weighted = 0.5 * loss.terms["jacobian"] + 0.3 * loss.terms["residual"] + 0.2 * loss.terms["cross_floor"]
    torch.testing.assert_close(loss.total.detach(), loss.task + weighted)
    torch.testing.assert_close(loss.task, loss.per_sample.mean())
    assert all(term > 0 for term in loss.terms.values())
    assert not any(x.requires_grad for x in [loss.task, loss.per_sample, *loss.terms.values()])
    assert set(loss.statistics) == {
        *("residual/image", "residual/text", "jacobian_norm"),
        *("cross/image<-text", "cross/text<-image", "self/image", "self/text"),
    }
    assert all(x.shape == (4,) and not x.requires_grad for x in loss.statistics.values())


def test_without_penalties_the_total_is_the_tasks_own_loss():
    model = small_model()
    loss = loss_of(model, TASK_ONLY)
    torch.testing.assert_close(
        loss.total, F.cross_entropy(model(features_for(model), ragged_masks(model)).logits, TARGET)
    )
    assert loss.terms == {}
    assert loss.statistics == {}


def test_the_gradient_of_the_whole_objective_matches_finite_differences():
    model = small_model()
    found = gradients(model)
    generator = torch.Generator().manual_seed(0)
    names = set(found)
    assert {"damping", "coupling.sides.image.balance", "coupling.sides.text.gate.read_proposal.weight"} <= names
    parameters = dict(model.named_parameters())
    for name in found:
        entry = int(torch.randint(found[name].numel(), (), generator=generator))
        difference = central_difference(model, parameters[name], entry)
        torch.testing.assert_close(
            found[name].flatten()[entry],
            difference,
            rtol=1e-5,
            atol=1e-8,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def central_difference(model: meq.FusionModel, parameter: Tensor, entry: int, width: float = 1e-5) -> Tensor:
    flat, values = parameter.data.view(-1), []
    before = flat[entry].item()
    for shift in (width, -width):
        flat[entry] = before + shift
        with torch.no_grad():
            values.append(loss_of(model).total)
    flat[entry] = before
    return (values[0] - values[1]) / (2 * width)


@pytest.mark.parametrize(("objective", "calls"), [(FULL, 4), (SWITCHED_OFF, 3), (TASK_ONLY, 3)])
def test_all_penalties_together_cost_one_operator_call_and_none_with_weight_zero(objective, calls):
    model, counted = small_model(), []
    model.coupling.register_forward_hook(lambda *_: counted.append(1))
    loss_of(model, objective).total.backward()
    assert len(counted) == calls


def test_a_penalty_says_the_same_alone_and_in_company():
    model = small_model()
    together = loss_of(model)
    for penalty in PENALTIES:
        alone = loss_of(model, Objective(penalties=(penalty,)))
        torch.testing.assert_close(alone.terms[penalty.name], together.terms[penalty.name], rtol=1e-12, atol=0)
        assert all(
            torch.allclose(x, together.statistics[name], rtol=1e-12, equal_nan=True)
            for name, x in alone.statistics.items()
        )


def test_padding_changes_neither_loss_nor_gradient():
    model = small_model()
    features, masks = features_for(model), ragged_masks(model)
    masks["image"] = torch.ones(4, 4, dtype=torch.bool)
    longer = {name: F.pad(x, (0, 0, 0, 2 + k), value=9.0) for k, (name, x) in enumerate(features.items())}
    hidden = {name: F.pad(masks[name], (0, longer[name].shape[1] - x.shape[1])) for name, x in features.items()}
    losses, found = [], []
    for x, mask in ((features, masks), (longer, hidden)):
        loss = FULL(model, model(x, mask, seeds=SEEDS), TARGET, seeds=SEEDS)
        losses.append(loss)
        found.append(
            torch.autograd.grad(loss.total, [model.damping, *model.coupling.sides["image"].project.parameters()])
        )
    torch.testing.assert_close(losses[0].statistics, losses[1].statistics, rtol=1e-11, atol=1e-13, equal_nan=True)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_a_batch_is_the_mean_of_its_samples():
    model = small_model(dropout=0.3).train()
    features, masks = features_for(model), ragged_masks(model)
    whole = loss_of(model)
    parts = []
    for row in range(4):
        one = slice(row, row + 1)
        output = model(
            {n: x[one] for n, x in features.items()}, {n: m[one] for n, m in masks.items()}, seeds=SEEDS[one]
        )
        parts.append(FULL(model, output, TARGET[one], seeds=SEEDS[one]))
    torch.testing.assert_close(torch.stack([part.total for part in parts]).mean(), whole.total, rtol=1e-11, atol=0)
    for name, values in whole.statistics.items():
        torch.testing.assert_close(torch.cat([part.statistics[name] for part in parts]), values, equal_nan=True)


def test_the_same_seeds_give_the_same_loss_and_others_another_one():
    model = small_model()
    one, same, other = (loss_of(model, seeds=seeds) for seeds in (SEEDS, SEEDS.clone(), SEEDS + 1))
    assert torch.equal(one.total, same.total)
    assert not torch.equal(one.statistics["jacobian_norm"], other.statistics["jacobian_norm"])


def test_diverged_samples_do_not_poison_the_others():
    """Of the four, one diverges on the way and one would with the next step."""
    healthy = torch.tensor([[0.3, 0.4], [0.5, 0.2]], dtype=torch.float64)
    broken = torch.tensor([[1e40, 0.0], [1e160, 0.0]], dtype=torch.float64)
    objective = Objective(task="score", penalties=PENALTIES)
    terms, found = [], []
    for start in (healthy, torch.cat([healthy, broken])):
        operator = Cubing().double()
        loss = outcome(operator, {"a": start}, objective, solver=meq.Damped(step=1.0), steps=1, tol=0)
        penalties = loss.total - loss.task
        terms.append(len(start) * torch.stack(list(loss.terms.values())))
        (gradient,) = torch.autograd.grad(loss.total, operator.scale)
        found.append(gradient)
        assert penalties.isfinite()
        assert loss.statistics["jacobian_norm"].isnan().tolist() == [False, False, True, True][: len(start)]
    assert not terms[0].isnan().any()
    torch.testing.assert_close(*terms)
    assert all(gradient.isfinite() for gradient in found)


def test_a_batch_that_diverged_altogether_leaves_the_task():
    start = torch.full((2, 2), 1e160, dtype=torch.float64)
    operator = Cubing().double()
    loss = outcome(operator, {"a": start}, Objective(task="score", penalties=PENALTIES), steps=2, tol=0)
    assert [term.item() for term in loss.terms.values()] == [0, 0, 0]
    assert loss.statistics["residual/a"].isnan().all()
    torch.testing.assert_close(loss.total, loss.task)


def test_without_gradients_the_numbers_are_the_same():
    model = small_model()
    with torch.no_grad():
        quiet = loss_of(model)
    loud = loss_of(model)
    assert not quiet.total.requires_grad
    torch.testing.assert_close(quiet.total, loud.total.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(quiet.statistics, loud.statistics, rtol=1e-12, atol=0, equal_nan=True)


def test_a_frozen_map_is_measured_like_any_other():
    model = small_model()
    expected = loss_of(model).statistics
    model.coupling.requires_grad_(False)
    model.damping.requires_grad_(False)
    loss = loss_of(model)
    torch.testing.assert_close(loss.statistics, expected, rtol=1e-12, atol=0, equal_nan=True)
    loss.total.backward()


def test_checkpointed_and_unrolled_give_the_same_gradient():
    model = small_model()
    unrolled = gradients(model)
    model.backward = meq.Checkpointed()
    torch.testing.assert_close(gradients(model), unrolled, rtol=0, atol=0)


@pytest.mark.parametrize("backward", [meq.Implicit(), meq.Phantom()], ids=lambda backward: type(backward).__name__)
def test_penalties_go_with_every_backward(backward):
    model = small_model("pair", steps=20)
    model.backward = backward
    found = gradients(model)
    assert found
    assert all(gradient.isfinite().all() for gradient in found.values())


@pytest.mark.parametrize("name", [name for name in MODELS if build(name).operator is not None])
def test_every_model_that_iterates_can_be_held(name):
    model = build(name)
    penalties = PENALTIES if name != "feature sum" else PENALTIES[:2]  # which has one state, so no pairs
    found = gradients(model, Objective(penalties=penalties))
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert any(gradient.abs().max() > 0 for key, gradient in found.items() if key.startswith("coupling"))


@pytest.mark.parametrize("name", [name for name in MODELS if build(name).operator is None])
def test_a_model_that_does_not_iterate_is_no_model_for_penalties(name):
    model = build(name)
    with pytest.raises(ValueError, match="JacobianRange and ResidualCorrection and CrossFloor cannot be measured"):
        loss_of(model)
    torch.testing.assert_close(loss_of(model, SWITCHED_OFF).total, loss_of(model, TASK_ONLY).total)


def test_every_choice_is_measured():
    model = build("pair", head="choices")
    features = {"image": torch.randn(4, 4, 6).double(), "text": torch.randn(4, 3, 3, 5).double()}
    loss = replace(FULL, task="choices")(model, model(features, seeds=SEEDS), TARGET, seeds=SEEDS)
    assert loss.per_sample.shape == (4,)
    assert loss.statistics["jacobian_norm"].shape == (12,)
    loss.total.backward()


def test_autocast_keeps_the_loss_in_float32():
    model = small_model("pair", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(features_for(model, dtype=torch.float32), ragged_masks(model), seeds=SEEDS)
        loss = FULL(model, output, TARGET, seeds=SEEDS)
    assert loss.total.dtype == torch.float32
    loss.total.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    exact = loss_of(small_model("pair")).total
    assert abs(loss.total.item() - exact.item()) < 0.05


def test_an_objective_is_frozen_and_checks_what_it_is_given():
    with pytest.raises(FrozenInstanceError):
        FULL.task = "score"
    with pytest.raises(ValueError, match="did you mean 'ordinal'"):
        Objective(task="ordinals")
    with pytest.raises(ValueError, match="each penalty once"):
        Objective(penalties=(JacobianRange(), JacobianRange(low=0.1)))
    with pytest.raises(TypeError, match="did you mean 'penalties'"):
        Objective(penalty=(ResidualCorrection(),))
    assert Objective(penalties=(CrossFloor({"a<-b": 1.0}),)) == Objective(penalties=(CrossFloor({"a<-b": 1.0}),))


def test_one_seed_per_sample_is_asked_for():
    model = small_model()
    output = model(features_for(model))
    with pytest.raises(ValueError, match="2 seeds for 4 samples"):
        FULL(model, output, TARGET, seeds=SEEDS[:2])


def test_a_model_without_a_head_has_no_loss():
    model = build("pair", classes=None)
    with pytest.raises(ValueError, match="classes=None"):
        FULL(model, model(features_for(model)), TARGET)


def test_weights_say_how_much_each_sample_counts_in_the_tasks_mean() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 2, 1, 2])
    output, weight = SimpleNamespace(logits=logits, solution=None), torch.tensor([1.0, 0.0, 3.0, 0.0])
    loss = Objective()(None, output, target, weight=weight)
    each = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(loss.total, (each[0] + 3 * each[2]) / 4)
    torch.testing.assert_close(loss.per_sample, each)
    assert Objective()(None, output, target, weight=torch.zeros(4)).total == 0


@pytest.mark.usefixtures("unchecked")
def test_weights_of_another_number_are_refused() -> None:
    output = SimpleNamespace(logits=torch.randn(4, 3), solution=None)
    with pytest.raises(ValueError, match=r"there are \(3,\) weights for 4 samples"):
        Objective()(None, output, torch.tensor([0, 2, 1, 2]), weight=torch.ones(3))
