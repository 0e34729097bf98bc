from __future__ import annotations

import math

import pytest
import torch
from analysis.subjects import batch_of, linear, tokens
from models.zoo import build, features_for, ragged_masks
from problems import Cubing
from torch import Tensor, nn

import meq
from meq.analysis.trajectory import follow
from meq.analysis.walk import answer

KINDS = (
    "three modalities",
    "merge",
    "gmlp",
    "mlp",
    "learned damping",
    "tree",
    "tree of vectors",
    "single state",
    "feature sum",
)


def test_every_number_is_that_of_the_closed_form() -> None:
    model, features = linear(), tokens()
    target = torch.tensor([0, 1, 2])
    found = follow(model, [batch_of(features, target)], steps=(0, 1, 7), horizon=40)
    assert (found.steps, found.read, found.horizon) == ((0, 1, 5, 7, 40), 5, 40)
    for row, k in enumerate(found.steps):
        state = model.state(k, features)
        logits = model.read(state, {}).detach()
        assert torch.equal(found.predictions[row], logits.argmax(1))
        torch.testing.assert_close(found.confidence[row], logits.softmax(1).amax(1))
        image = model.operator(state, features)
        for name, z in state.items():
            gap = (image[name] - z).flatten(1).norm(dim=1) / z.flatten(1).norm(dim=1)  # at z(0) = 0: x / 0 = inf
            torch.testing.assert_close(found.residuals[name][row], gap.detach())
    for name, drift in found.drift.items():
        end, start = (model.state(k, features)[name].flatten(1) for k in (40, 5))
        torch.testing.assert_close(drift, (end - start).norm(dim=1) / start.norm(dim=1))
    assert found.correct is not None
    assert found.metric is not None
    torch.testing.assert_close(found.metric, (found.predictions == target).double().mean(1))


def test_batches_of_any_size_give_the_same_numbers() -> None:
    model, features = linear(), tokens(batch=7)
    target = torch.arange(7) % 3
    whole = follow(model, [batch_of(features, target)], horizon=20)
    parts = [batch_of({n: x[a:b] for n, x in features.items()}, target[a:b]) for a, b in ((0, 1), (1, 5), (5, 7))]
    split = follow(model, iter(parts), horizon=20)
    assert torch.equal(split.predictions, whole.predictions)
    torch.testing.assert_close(split.confidence, whole.confidence)
    torch.testing.assert_close(split.residuals, whole.residuals)
    torch.testing.assert_close(split.drift, whole.drift)
    assert torch.equal(split.metric, whole.metric)


def test_flips_count_the_samples_that_answer_otherwise_later() -> None:
    model, features = linear(radius=1.2), tokens(batch=30)
    found = follow(model, [batch_of(features)], steps=range(1, 41), horizon=40)
    rows = found.predictions.tolist()
    by_hand = [sum(any(later[n] != row[n] for later in rows[k:]) for n in range(30)) for k, row in enumerate(rows)]
    assert found.flips.tolist() == by_hand
    assert by_hand[0] > 0
    assert by_hand[-1] == 0
    assert found.correct is None
    assert found.metric is None


def test_a_metric_sees_all_logits_of_a_step_at_once() -> None:
    model, features = linear(), tokens(batch=4)
    batches = [batch_of({n: x[k : k + 2] for n, x in features.items()}, torch.rand(2, 3)) for k in (0, 2)]
    seen: list[tuple[Tensor, Tensor]] = []

    def spread(logits: Tensor, target: Tensor) -> float:
        seen.append((logits, target))
        return logits.std().item()

    found = follow(model, batches, steps=(1,), horizon=9, metric=spread)
    expected = [model.read(model.state(k, features), {}) for k in (1, 5, 9)]
    torch.testing.assert_close(found.metric, torch.stack([logits.std() for logits in expected]).detach())
    assert found.metric_name == "spread"
    assert "spread" in str(found)
    assert all(target.shape == (4, 3) for _, target in seen)
    assert found.correct is None  # soft targets are no classes


class Exploding(nn.Module):
    """`Cubing` read by one matrix; rows beyond 1 leave the finite numbers after a few steps."""

    head_kind, steps = "classes", 2

    def __init__(self) -> None:
        super().__init__()
        self.operator = Cubing().double()

    def damped(self) -> meq.Damped:
        return meq.Damped(step=1.0)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor] | None = None) -> meq.Output:
        solution = meq.solve(self.operator, features, solver=self.damped(), steps=self.steps, tol=0.0)
        return meq.Output(self.read(solution.state, {}), {}, solution)

    def read(self, state: meq.State, masks: dict[str, Tensor]) -> Tensor:
        return torch.stack([state["a"][:, 0] ** 3, state["b"][:, 0]], dim=1)


@pytest.mark.parametrize("rows", [[0.5, 30.0, 0.1], [30.0, 40.0]])
def test_diverged_samples_are_counted_and_do_not_touch_the_others(rows: list[float]) -> None:
    a = torch.tensor(rows, dtype=torch.float64)[:, None]
    found = follow(Exploding(), [batch_of({"a": a}, torch.ones(len(rows), dtype=torch.long))], horizon=50)
    gone = a[:, 0] > 1
    assert found.diverged == int(gone.sum())
    assert torch.equal(found.stopped >= 0, gone)
    assert torch.equal(found.drift["a"].isnan(), gone)
    assert torch.equal(found.residuals["a"][-1].isnan(), gone)
    assert torch.equal(found.predictions[-1] < 0, gone)  # the last finite state, cubed once more, is not
    assert f"{int(gone.sum())} diverged" in str(found)
    if bool((~gone).any()):
        alone = follow(Exploding(), [batch_of({"a": a[~gone]})], horizon=50)
        torch.testing.assert_close(found.confidence[:, ~gone], alone.confidence, rtol=0, atol=0)
        assert found.metric is not None
        assert math.isclose(found.metric[-1], 1.0)
    else:
        assert found.metric is not None
        assert math.isnan(found.metric[-1])


@pytest.mark.parametrize("name", KINDS)
def test_every_model_that_iterates_can_be_followed(name: str) -> None:
    model = build(name)
    features, masks = features_for(model), ragged_masks(model)
    found = follow(model, [batch_of(features, torch.zeros(4, dtype=torch.long), **masks)], horizon=12)
    model.tol = 0.0
    output = model(features, masks)
    assert torch.equal(found.predictions[found.at(model.steps)], output.logits.argmax(1))
    for key, residual in output.solution.final_residual.items():
        torch.testing.assert_close(found.residuals[key][found.at(model.steps)], residual, equal_nan=True)
    if "text" in found.residuals:
        assert found.residuals["text"][:, 2].isnan().all()
        assert found.drift["text"][2].isnan()


def test_multiple_choice_has_a_state_per_choice_and_an_answer_per_sample() -> None:
    model = build("pair", head="choices", classes=1)
    features = features_for(model)
    features["text"] = torch.randn(4, 5, 3, 5, dtype=torch.float64)
    found = follow(model, [batch_of(features, torch.tensor([0, 4, 1, 2]))], horizon=8)
    assert found.predictions.shape[1] == 4
    assert found.residuals["image"].shape[1] == 20
    model.tol = 0.0
    assert torch.equal(found.predictions[found.at(4)], model(features).logits.argmax(1))
    assert "4 samples, 20 states" in str(found)


def test_the_probability_follows_the_head() -> None:
    logits = torch.tensor([[1.0, 3.0], [0.5, -2.0], [math.nan, 0.0]])
    prediction, confidence = answer(logits, "classes")
    assert prediction.tolist() == [1, 0, -1]
    torch.testing.assert_close(confidence[:2], logits.softmax(1)[:2].amax(1))
    assert confidence[2].isnan()
    torch.testing.assert_close(answer(logits, "labels")[1][:2], torch.tensor([3.0, 0.5]).sigmoid())
    prediction, confidence = answer(logits[:, :1], "score")
    assert prediction.tolist() == [1, 1, -1]
    assert confidence.isnan().all()


def test_the_model_is_left_as_it_was() -> None:
    model = build("pair", dropout=0.5, modality_dropout=0.3).train()
    model.head.eval()
    modes = [module.training for module in model.modules()]
    batches = [batch_of(features_for(model))]
    first, second = (follow(model, batches, horizon=6) for _ in range(2))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(first.confidence, second.confidence)  # dropout was off
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_another_solver_of_the_model_is_followed() -> None:
    model = build("pair")
    batches = [batch_of(features_for(model))]
    damped = follow(model, batches, horizon=20)
    model.solver = meq.Anderson()
    faster = follow(model, batches, horizon=20)
    assert (faster.residuals["image"][-1] < damped.residuals["image"][-1]).all()


def test_the_table_names_the_step_that_is_read_and_the_drift() -> None:
    text = str(follow(linear(), [batch_of(tokens(), torch.tensor([0, 1, 2]))], horizon=300))
    lines = text.splitlines()
    assert lines[0] == "3 samples, none diverged"
    assert lines[1].split() == ["k", "accuracy", "confidence", "flips", "lost", "image", "residual", "text", "residual"]
    assert [line for line in lines if line.startswith("5*")]
    assert "drift |z(300) - z(5)| / |z(5)|: image" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 3}, "before the step that is read"),
        ({"steps": (1, 400)}, r"\[400\] lie outside 0 to 300"),
        ({"steps": (-1,)}, r"\[-1\] lie outside"),
        ({"metric": lambda logits, target: 0.0}, "no targets"),
        ({"horizn": 3}, "did you mean 'horizon'"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        follow(linear(), [batch_of(tokens())], **options)


def test_what_cannot_be_followed_is_said(unchecked: None) -> None:
    with pytest.raises(ValueError, match="Concat does not iterate"):
        follow(build("concat"), [])
    with pytest.raises(ValueError, match="no batches"):
        follow(linear(), [])
    model = build("pair", classes=None)
    with pytest.raises(ValueError, match="no head"):
        follow(model, [batch_of(features_for(model))])
    with pytest.raises(ValueError, match="some batches have targets"):
        follow(linear(), [batch_of(tokens(), torch.zeros(3, dtype=torch.long)), batch_of(tokens())])
    with pytest.raises(ValueError, match="step 3 was not measured"):
        follow(linear(), [batch_of(tokens())], steps=(), horizon=9).at(3)
