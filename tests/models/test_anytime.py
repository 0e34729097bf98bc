"""A model that is read as soon as a rule is satisfied; steps are compared with reads at every depth."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models.zoo import MODELS, PAIR, features_for
from torch import Tensor

import meq
from meq import Anytime, Stop
from meq.models.export import export

MOST = 9
HEADS: dict[str, dict[str, Any]] = {
    "classes": {},
    "ordinal": {"head": "ordinal"},
    "labels": {"head": "labels"},
    "score": {"head": "score", "classes": 1},
    "tokens": {"head": "tokens"},
    "choices": {"head": "choices", "classes": 1},
}
CHOICES = 3


def small(head: str = "classes", **options: Any) -> meq.MutualEquilibrium:
    torch.manual_seed(5)
    model = MODELS["pair"](**{**HEADS[head], "tol": 0.0, **options}).double().eval()
    assert isinstance(model, meq.MutualEquilibrium)
    with torch.no_grad():
        for parameter in (
            () if model.head is None else model.head.parameters()
        ):  # answers that still move are worth stopping for
            parameter.mul_(6)
    return model


def batch(model: meq.FusionModel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    masks = {"text": torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]]).bool()}
    features = features_for(model, batch=6)
    if model.head_kind == "choices":
        features["text"] = torch.stack([features["text"].roll(by, 0) for by in range(CHOICES)], 1)
        masks["text"] = masks["text"][:, None].repeat(1, CHOICES, 1)
    return features, masks


def per_example(rows: Tensor) -> Tensor:
    """One of each example, whose choices stopped together."""
    grouped = rows.reshape(6, -1)
    assert (grouped == grouped[:, :1]).all()
    return grouped[:, 0]


def every_depth(model: meq.MutualEquilibrium) -> list[meq.Output]:
    """What a read at each step says, 1 to MOST, as runs of their own."""
    with torch.no_grad():
        return [model(*batch(model), steps=k) for k in range(1, MOST + 1)]


def distances(rule: str, head: str, outputs: list[meq.Output]) -> Tensor:
    """Per step from 2 on and sample: what the rule compares, written down once more, by distributions of torch."""
    rows = []
    for before, now in itertools.pairwise(outputs):
        p, q = now.logits, before.logits
        assert p is not None
        assert q is not None
        if rule == "confidence":
            each = p.sigmoid().amax(-1) if head == "labels" else p.softmax(-1).amax(-1)
            each = each if now.answered is None else each.masked_fill(~now.answered, 1).amin(1)
        elif head == "score":
            each = (p - q)[:, 0].abs()
        elif head == "labels":
            kinds = [torch.distributions.Bernoulli(logits=x) for x in (p, q)]
            each = torch.distributions.kl_divergence(*kinds).sum(-1)
        else:
            kinds = [torch.distributions.Categorical(logits=x) for x in (p, q)]
            each = torch.distributions.kl_divergence(*kinds)
            each = each if now.answered is None else each.masked_fill(~now.answered, 0).amax(1)
        rows.append(each)
    return torch.stack(rows)


def first(hits: Tensor, begin: int) -> list[int]:
    """The first step of each sample at which there is a hit; MOST where there is none before."""
    return [
        next((begin + at for at, hit in enumerate(column) if hit and begin + at < MOST), MOST)
        for column in hits.T.tolist()
    ]


@pytest.mark.parametrize(
    ("rule", "head"),
    [(rule, head) for head in HEADS for rule in ("change", "confidence") if (rule, head) != ("confidence", "score")],
)
def test_each_sample_is_read_at_the_first_step_that_satisfies_the_rule(rule: str, head: str) -> None:
    model = small(head)
    outputs = every_depth(model)
    seen = distances(rule, head, outputs)
    threshold = seen.median().item() * 1.0001
    hits = seen >= threshold if rule == "confidence" else seen <= threshold
    model.anytime = Anytime(rule, threshold, least=2, most=MOST)
    with torch.no_grad():
        output = model(*batch(model))
    expected = first(hits, 2)
    assert len(set(expected)) > 1, "a test in which all stop together would say little"
    assert output.solution is not None
    assert per_example(output.solution.steps).tolist() == expected
    for row, step in enumerate(expected):
        assert output.logits is not None
        torch.testing.assert_close(output.logits[row], outputs[step - 1].logits[row], rtol=0, atol=1e-12)  # type: ignore[index]
    read = per_example(output.solution.stop_codes == Stop.READ.code)
    assert read.tolist() == [step < MOST for step in expected]


def test_agreement_asks_for_so_many_equal_answers_in_a_row() -> None:
    model = small("tokens")
    outputs = every_depth(model)
    answers = torch.stack([each.logits.argmax(-1) for each in outputs])  # type: ignore[union-attr]
    same = (answers[1:] == answers[:-1]).all(-1)  # tokens that are not there answer 0 at every step
    expected = first(same[:-1] & same[1:], 3)
    model.anytime = Anytime("agreement", patience=3, least=3, most=MOST)
    with torch.no_grad():
        output = model(*batch(model))
    assert output.solution is not None
    assert output.solution.steps.tolist() == expected
    assert len(set(expected)) > 1


def test_of_choices_the_answer_of_the_example_has_to_agree() -> None:
    """Two examples of two choices: the scores of both move, and the second one changes its mind."""
    reader = Anytime("agreement", patience=2).reader(lambda state, masks: (state["z"], None), "choices", 2)
    everybody = torch.ones(4, dtype=torch.bool)
    for k, scores in enumerate([[0.0, 1.0, 3.0, 2.0], [0.0, 2.0, 1.0, 2.0]]):
        found = reader(k, {"z": torch.tensor(scores)[:, None]}, everybody)
    assert found.tolist() == [True, True, False, False]


def test_the_choices_of_an_example_stop_when_the_residuals_of_all_are_small_enough() -> None:
    model = small("choices")
    with torch.no_grad():
        seen = model(*batch(model), steps=MOST).solution.residuals
    largest = torch.stack(list(seen.values())).nan_to_num(0).amax(0)
    grouped = largest.reshape(MOST, 6, CHOICES).amax(2)
    threshold = grouped[3].median().item() * 1.0001
    model.anytime = Anytime("residual", threshold, most=MOST)
    with torch.no_grad():
        found = model(*batch(model)).solution
    assert per_example(found.steps).tolist() == first(grouped[1:] <= threshold, 1)
    assert first(largest[1:] <= threshold, 1) != found.steps.tolist(), "alone, some choices would stop sooner"


def test_the_residual_that_stops_a_sample_is_that_of_its_own_state() -> None:
    model = small(classes=None)
    with torch.no_grad():
        seen = model(*batch(model), steps=MOST).solution.residuals
    largest = torch.stack(list(seen.values())).nan_to_num(0).amax(0)
    threshold = largest[3].median().item() * 1.0001
    model.anytime = Anytime("residual", threshold, most=MOST)
    with torch.no_grad():
        found = model(*batch(model)).solution
    assert found.steps.tolist() == first(largest[1:] <= threshold, 1)
    read = torch.stack(list(found.final_residual.values())).nan_to_num(0).amax(0)
    assert all(value <= threshold for value, stop in zip(read.tolist(), found.stop, strict=True) if stop is Stop.READ)


@pytest.mark.parametrize("head", ["classes", "choices"])
def test_a_sample_stops_at_the_same_step_whoever_shares_the_batch(head: str) -> None:
    model = small(head)
    threshold = distances("change", head, every_depth(model)).median().item() * 1.0001
    model.anytime = Anytime("change", threshold, patience=2, most=MOST)
    features, masks = batch(model)
    with torch.no_grad():
        together = per_example(model(features, masks).solution.steps).tolist()
        alone = [
            model({name: x[[row]] for name, x in features.items()}, {name: x[[row]] for name, x in masks.items()})
            for row in range(6)
        ]
    assert [each.solution.steps.unique().item() for each in alone] == together


def test_training_and_gradients_know_no_rule_and_no_rule_changes_no_bit() -> None:
    model = small()
    features, masks = batch(model)
    with torch.no_grad():
        plain = model(features, masks)
    model.anytime = Anytime("confidence", 0.0)
    with torch.no_grad():
        assert model(features, masks).solution.steps.tolist() == [1] * 6
        assert torch.equal(model(features, masks, steps=4).logits, plain.logits), "a depth that is asked for is taken"
        assert model.train()(features, masks).solution.steps.tolist() == [4] * 6
    assert model.eval()(features, masks).solution.steps.tolist() == [4] * 6
    model.anytime = None
    with torch.no_grad():
        assert torch.equal(model(features, masks).logits, plain.logits)


def test_a_read_at_a_depth_gives_the_rule_back_even_after_an_error() -> None:
    model = small()
    model.anytime = rule = Anytime("change", 0.1)
    with pytest.raises(ValueError, match="steps must be a whole number"), torch.no_grad():
        model(*batch(model), steps=0)
    assert model.anytime == rule
    with model.read_at(7):
        assert (model.steps, model.anytime) == (7, None)
    assert (model.steps, model.anytime) == (4, rule)


def test_only_the_root_of_a_tree_is_read_early() -> None:
    torch.manual_seed(0)
    model = MODELS["tree"](tol=0.0).double().eval()
    model.anytime = Anytime("confidence", 0.0, most=8)
    with torch.no_grad():
        output = model(features_for(model))
    assert output.solution.steps.tolist() == [1] * 4
    assert [each.steps.tolist() for each in output.branches.values()] == [[4] * 4]


def test_the_rule_is_saved_with_the_model_and_only_where_there_is_one(tmp_path: Path) -> None:
    model = small()
    model.save_pretrained(tmp_path / "plain")
    assert "anytime" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    assert meq.MutualEquilibrium.from_pretrained(tmp_path / "plain").anytime is None
    model.anytime = Anytime("change", 0.25, patience=2, least=3, most=20)
    model.save_pretrained(tmp_path / "ruled")
    assert meq.FusionModel.from_pretrained(tmp_path / "ruled").anytime == model.anytime
    config = json.loads((tmp_path / "ruled" / "config.json").read_text())
    for wrong, words in [
        ({"rule": "no"}, "stopping rule"),
        ({"rule": "change", "x": 1}, "no option 'x'"),
        (3, "object"),
    ]:
        (tmp_path / "ruled" / "config.json").write_text(json.dumps({**config, "anytime": wrong}))
        with pytest.raises(ValueError, match=f"config.json: .*{words}"):
            meq.FusionModel.from_pretrained(tmp_path / "ruled")


def test_a_graph_cannot_follow_a_rule_and_says_so() -> None:
    model = small()
    model.anytime = Anytime("change", 0.1)
    with pytest.raises(ValueError, match="takes the same steps for every sample"):
        export(model, *batch(model))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": "residuals", "threshold": 1}, "did you mean 'residual'"),
        ({"rule": "change"}, "meq calibrate RUN --stop"),
        ({"rule": "change", "threshold": -1.0}, "0 or a positive number"),
        ({"rule": "confidence", "threshold": 1.5}, "must be a probability"),
        ({"rule": "agreement", "threshold": 0.1}, "has no threshold"),
        ({"rule": "agreement", "patience": 1}, "at least 2"),
        ({"rule": "change", "threshold": 0.1, "least": 5, "most": 3}, "must not be below least"),
    ],
)
def test_a_rule_that_makes_no_sense_is_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Anytime(**options)


def test_a_rule_has_to_fit_the_model() -> None:
    with pytest.raises(TypeError, match="anytime must be an object"):
        small().anytime = "change"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="a number has no confidence"):
        small("score").anytime = Anytime("confidence", 0.5)
    with pytest.raises(ValueError, match="the model has none"):
        meq.MutualEquilibrium(PAIR, dim=8, heads=2).anytime = Anytime("change", 0.5)
