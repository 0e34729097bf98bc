"""The instruments on a model that answers per token."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import meq
from meq.analysis import attribute, diagnose, follow
from meq.analysis.answers import measure_answers
from meq.analysis.removal import measure_faithfulness, modality_effects, sureness
from meq.analysis.walk import open_case
from meq.data.metrics import TOKEN_ACCURACY

WIDTHS = {"image": 4, "text": 3}


@pytest.fixture(scope="module")
def model() -> meq.MutualEquilibrium:
    torch.manual_seed(2)
    built = meq.MutualEquilibrium(
        WIDTHS, 3, dim=8, heads=2, steps=3, head_width=12, head="tokens", answering=("text", "image")
    )
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return built.double().eval()


def batch(size: int, text: int, seed: int) -> SimpleNamespace:
    """The last text token of the first sample is padding; targets are at random, one token of each is not asked."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.ones(size, text, dtype=torch.bool)
    mask[0, -1] = False
    target = torch.randint(3, (size, text + 2), generator=generator)
    target[0, text - 1] = -1
    target[:, 0] = -1
    features = {"image": draw(size, 2, 4), "text": draw(size, text, 3)}
    return SimpleNamespace(features=features, masks={"text": mask}, target=target)


def test_a_trajectory_follows_every_token_through_batches_of_different_lengths(model: meq.MutualEquilibrium) -> None:
    batches = [batch(3, 4, 0), batch(2, 2, 1)]
    found = follow(model, batches, steps=[0, 1], horizon=6)
    assert found.predictions.shape == found.confidence.shape == (4, 5, 6)
    assert found.answered.sum(1).tolist() == [5, 6, 6, 3, 4]
    assert (found.predictions[:, ~found.answered] == -1).all()
    assert found.confidence[:, ~found.answered].isnan().all()
    assert (found.predictions[:, found.answered] >= 0).all()
    row, right, asked = found.at(3), 0, 0
    for part in batches:
        said = model(part.features, part.masks).logits.argmax(-1)
        right += int((said == part.target)[part.target >= 0].sum())
        asked += int((part.target >= 0).sum())
    assert int(found.correct[row].sum()) == right
    assert float(found.metric[row]) == pytest.approx(right / asked)
    assert "5 samples, 24 tokens, none diverged" in str(found)
    assert all(line.split()[4] == "0" for line in str(found).splitlines()[2:6]), "padding is not lost"
    assert int(found.flips.max()) <= 24


def test_a_trajectory_is_scored_by_a_metric_of_tokens(model: meq.MutualEquilibrium) -> None:
    batches = [batch(3, 4, 0), batch(2, 2, 1)]
    by_default, by_metric = (follow(model, batches, horizon=4, metric=metric) for metric in (None, TOKEN_ACCURACY))
    torch.testing.assert_close(by_metric.metric, by_default.metric)
    assert by_metric.metric_name == "token accuracy"


def test_without_targets_there_is_nothing_to_score(model: meq.MutualEquilibrium) -> None:
    given = batch(2, 3, 0)
    given.target = None
    found = follow(model, [given], horizon=3)
    assert found.correct is None
    assert found.metric is None


@pytest.mark.parametrize("method", ["grad-cam", "gradient", "gradient-x-input", "rollout"])
def test_a_map_is_of_one_tokens_answer(model: meq.MutualEquilibrium, method: str) -> None:
    given = batch(3, 4, 0)
    logits = model(given.features, given.masks).logits
    found = attribute(model, given.features, given.masks, method=method, steps=[3], token=1)
    assert found.token.tolist() == [1, 1, 1]
    torch.testing.assert_close(found.scores[0], logits[:, 1].amax(-1))
    assert torch.equal(found.classes[0], logits[:, 1].argmax(-1))
    other = attribute(model, given.features, given.masks, method=method, steps=[3], token=torch.tensor([1, 1, 4]))
    for name, each in found.maps.items():
        assert each.shape == (1, 3, given.features[name].shape[1])
        torch.testing.assert_close(other.maps[name][:, :2], each[:, :2])
    assert any(not torch.allclose(other.maps[name][:, 2], each[:, 2]) for name, each in found.maps.items())


def test_before_the_first_exchange_a_token_has_read_itself_alone(model: meq.MutualEquilibrium) -> None:
    given = batch(2, 4, 0)
    # answers are counted text first: place 4 is the first image token
    found = attribute(model, given.features, given.masks, method="rollout", steps=[0], token=4)
    assert found.maps["image"][0].tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert found.maps["text"].abs().sum() == 0


def test_unless_told_the_token_is_the_least_sure_real_one(model: meq.MutualEquilibrium) -> None:
    given = batch(3, 4, 0)
    output = model(given.features, given.masks)
    sure = output.logits.softmax(-1).amax(-1).masked_fill(~output.answered, math.inf)
    found = attribute(model, given.features, given.masks, steps=[3])
    assert torch.equal(found.token, sure.argmin(1))


def test_a_token_that_is_not_there_is_an_error_that_names_those_that_are(model: meq.MutualEquilibrium) -> None:
    given = batch(2, 3, 0)
    for token in (2, 9, -1):
        with pytest.raises(
            ValueError, match=rf"sample 0 has no token {token} that answers: those that do are 0, 1, 3, 4"
        ):
            attribute(model, given.features, given.masks, token=token)
    classes = meq.MutualEquilibrium(WIDTHS, 3, dim=8, heads=2, steps=2).double()
    with pytest.raises(ValueError, match="token=1 belongs to head='tokens'"):
        attribute(classes, given.features, given.masks, token=1)


def test_readings_of_one_token_are_those_of_all_at_its_place(model: meq.MutualEquilibrium) -> None:
    given = batch(2, 3, 0)
    with torch.no_grad():
        case = open_case(model, given.features, given.masks)
        every, one = case.read_along([0, 3]), case.of_token(1).read_along([0, 3])
    torch.testing.assert_close(one.logits, every.logits[:, :, 1])
    assert every.answered.shape == (2, 5)
    assert one.answered is None


def test_sureness_is_the_mean_over_the_tokens_that_answered() -> None:
    whole = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [5.0, 0.0]]])
    answered = torch.tensor([[True, True, False]])
    found = sureness(torch.zeros(1, 3, 2), whole, "tokens", answered)
    assert found.tolist() == [0.5]
    same = sureness(whole, whole, "tokens", answered)
    assert float(same) == pytest.approx((1 / (1 + math.exp(-2)) + 1 / (1 + math.exp(-1))) / 2)


def test_effects_of_modalities_add_up_to_the_mean_sureness_above_chance(model: meq.MutualEquilibrium) -> None:
    given = batch(3, 4, 0)
    output = model(given.features, given.masks)
    effects = modality_effects(model, given.features, given.masks)
    whole = sureness(output.logits, output.logits, "tokens", output.answered)
    torch.testing.assert_close(torch.stack([*effects.values()]).sum(0), whole - 1 / 3)


def test_residuals_of_tokens_make_up_that_of_the_sample_and_padding_has_none(model: meq.MutualEquilibrium) -> None:
    given = batch(3, 4, 0)
    case = open_case(model, given.features, given.masks)
    state = case.solution.state
    found = case.token_residuals(state)
    assert found.isnan().tolist() == (~case.answered).tolist()
    text = found[:, :4].nan_to_num(0.0)  # text answers before the picture
    sizes = state["text"].norm(dim=-1).masked_fill(~given.masks["text"], 0)
    whole = (text * sizes).norm(dim=1) / sizes.norm(dim=1)
    torch.testing.assert_close(whole, case.solution.final_residual["text"])


def test_effects_on_one_token_add_up_to_its_own_sureness_above_chance(model: meq.MutualEquilibrium) -> None:
    given, token = batch(3, 4, 0), torch.tensor([0, 3, 5])
    effects = modality_effects(model, given.features, given.masks, token=token)
    chances = model(given.features, given.masks).logits.softmax(-1).amax(-1)
    torch.testing.assert_close(torch.stack([*effects.values()]).sum(0), chances.gather(1, token[:, None])[:, 0] - 1 / 3)


def test_maps_of_tokens_are_put_to_the_deletion_test(model: meq.MutualEquilibrium) -> None:
    found = measure_faithfulness(model, [batch(4, 4, 0), batch(3, 3, 1)], method="gradient")
    assert found.gain.keys() == {"image", "text"}
    assert all(math.isfinite(gain.value) for gain in found.gain.values())


class Echo(torch.nn.Module):
    """Text tokens say what stands in the picture's only token; the picture's own token says 0."""

    head_kind, answering, widths = "tokens", ("text", "image"), WIDTHS

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor] | None = None) -> SimpleNamespace:
        text = features["image"][:, :1, :3].expand(-1, features["text"].shape[1], -1)
        image = torch.tensor([1.0, 0.0, 0.0]).to(text).expand(len(text), 1, 3)
        real = (masks or {}).get("text", torch.ones(text.shape[:2], dtype=torch.bool))
        answered = torch.cat([real, torch.ones(len(text), 1, dtype=torch.bool)], 1)
        return SimpleNamespace(logits=torch.cat([text, image], 1), answered=answered)


def test_shuffling_a_modality_costs_the_tokens_that_rest_on_it() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = []
    for words in (2, 4):
        label = torch.randint(3, (30,), generator=generator)
        image = torch.nn.functional.pad(torch.nn.functional.one_hot(label, 3).float(), (0, 1))[:, None]
        target = torch.cat([label[:, None].expand(-1, words), torch.zeros(30, 1).long()], 1).clone()
        target[::5, 0] = -1
        features = {"image": image, "text": torch.randn(30, words, 3, generator=generator)}
        batches.append(SimpleNamespace(features=features, masks={}, target=target))
    found = measure_answers(Echo(), batches)
    asked = sum(int((part.target >= 0).sum()) for part in batches)
    text = sum(int((part.target[:, :-1] >= 0).sum()) for part in batches)
    assert found.samples == 60
    assert found.score == 1.0
    assert found.score_name == "accuracy"
    assert found.chance == pytest.approx(1 / 3)
    assert found.losses["image"].value == pytest.approx(2 / 3 * text / asked, abs=0.12)
    assert found.losses["image"].low > 0.3
    assert found.losses["text"].value > 0, "where another's text is shorter there is nobody to answer"
    assert found.counts("image")


def test_a_model_of_tokens_is_diagnosed(model: meq.MutualEquilibrium) -> None:
    given = batch(4, 3, 0)
    many = [batch(12, 3, seed) for seed in range(2)]
    found = diagnose(model, model(given.features, given.masks), data=many, samples=1)
    assert found.answers.samples == 24
    assert set(found.answer) == {"image", "text"}
    assert "verdict:" in str(found)
