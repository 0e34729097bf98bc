"""Thresholds that keep a promise, on tables of scores and answers that are made up, and on a small model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from training.small import small_data, small_model

import meq
from meq.data.metrics import ACCURACY, MICRO_F1, SOFT_ACCURACY
from meq.models.anytime import RULES, Anytime
from meq.records import dumps, loads, plain
from meq.training.calibration import (
    CHECKS,
    CalibrationError,
    Walked,
    answer_quality,
    calibrate_stopping,
    choose_stopping,
    in_first_half,
    share_within,
    walk_split,
)
from meq.training.predictions import answer_batch

MOST, SAMPLES = 12, 4000


def made_up(seed: int = 0, *, honest: bool = True) -> Walked:
    """Every sample becomes right at a step of its own and stays so, but for a few that are never right.

    An honest score falls below 0.5 two steps after that at the earliest. One that is not is 0 at every step, and the
    answers are right at the last one alone.
    """
    generator = torch.Generator().manual_seed(seed)
    arrives = torch.randint(1, 8, (SAMPLES,), generator=generator)
    arrives = arrives if honest else torch.full_like(arrives, MOST)
    steps = torch.arange(MOST + 1)[:, None]
    never = torch.rand(SAMPLES, generator=generator) < 0.1
    right = (steps >= arrives) & ~never
    noise = 0.4 * torch.rand(MOST + 1, SAMPLES, generator=generator, dtype=torch.float64)
    score = noise + 0.6 * (steps < arrives + 2) if honest else torch.zeros(MOST + 1, SAMPLES, dtype=torch.float64)
    scores = {"residual": score, "change": score, "agreement": (score > 0.5).double(), "confidence": 1 - score}
    return Walked(
        ids=[f"s{row}" for row in range(SAMPLES)],
        scores=scores,
        quality=right.double(),
        rested=torch.full((SAMPLES,), MOST),
    )


@pytest.mark.parametrize("rule", RULES)
def test_the_promise_holds_in_95_of_100_resamples_and_saves_steps(rule: str) -> None:
    found = choose_stopping(made_up(), rule=rule, risk=0.01)
    assert found.anytime is not None
    assert found.anytime.rule == rule
    (trial,) = found.trials
    assert trial.holds
    assert trial.within >= 0.95
    assert trial.checked_within >= 0.95
    assert trial.steps < 8, "the mean arrival is at step 4, the full depth is 12"
    fresh = made_up(seed=1)  # samples that neither half has seen
    lost = fresh.loss(fresh.stops(found.anytime))
    (held,) = share_within(lost[None], 0.01, CHECKS, seed=9)
    assert held >= 0.95


def test_a_looser_promise_stops_sooner() -> None:
    steps = [choose_stopping(made_up(), rule="change", risk=risk).trials[0].steps for risk in (0.0, 0.01, 0.1)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0] - 0.25


def test_where_no_threshold_keeps_the_promise_the_full_depth_stays_and_that_is_said() -> None:
    found = choose_stopping(made_up(honest=False), risk=0.01)
    assert found.anytime is None
    assert not any(trial.holds for trial in found.trials)
    assert "no threshold of residual, change, agreement, confidence keeps the promise" in " ".join(found.notes)
    assert "the model is read at its own depth" in str(found)
    assert "kept: no rule" in str(found)


def test_of_all_rules_the_one_with_the_fewest_steps_is_kept_and_ties_are_said() -> None:
    walked = made_up()
    found = choose_stopping(walked, risk=0.01)
    assert found.anytime is not None
    holding = {trial.rule: trial.steps for trial in found.trials if trial.holds}
    assert holding[found.anytime.rule] == min(holding.values())
    assert set(holding) == set(RULES)
    same = replace(walked, scores=dict.fromkeys(("residual", "change"), walked.scores["residual"]))
    assert "change takes as many steps as residual" in " ".join(choose_stopping(same, risk=0.01).notes)


def test_a_promise_that_fails_its_check_is_not_kept() -> None:
    """The half that calibrates is right at every step, the other one at the last alone."""
    walked = made_up(honest=False)
    first = torch.tensor([in_first_half(name, 0) for name in walked.ids])
    last = torch.arange(MOST + 1)[:, None] == MOST
    found = choose_stopping(replace(walked, quality=(first | last).double()), rule="change", risk=0.01)
    assert found.anytime is None
    assert found.trials[0].within == 1.0
    assert found.trials[0].checked_within == 0.0
    assert "did not hold on the samples that check it" in " ".join(found.notes)


def test_halves_depend_on_ids_alone_and_few_samples_are_said() -> None:
    walked = made_up()
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(3))
    shuffled = Walked(
        ids=[walked.ids[row] for row in order.tolist()],
        scores={rule: each[:, order] for rule, each in walked.scores.items()},
        quality=walked.quality[:, order],
        rested=walked.rested[order],
    )
    assert choose_stopping(shuffled, rule="agreement").samples == choose_stopping(walked, rule="agreement").samples
    few = walked.rows(torch.arange(SAMPLES) < 60)
    assert "can stay unseen in so many" in " ".join(choose_stopping(few, rule="change").notes)
    with pytest.raises(CalibrationError, match="too few to calibrate"):
        choose_stopping(walked.rows(torch.arange(SAMPLES) < 1))


def test_a_sample_that_rests_by_itself_takes_no_more_steps() -> None:
    walked = replace(made_up(), rested=torch.full((SAMPLES,), 3))
    assert walked.stops(Anytime("residual", 0.0)).max() == 3


# -- along a model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return small_model(dropout=0.0, modality_dropout=0.0, steps=4, tol=0.0).eval()


@pytest.mark.parametrize("rule", RULES)
def test_the_walk_foresees_where_the_model_will_stop(model: Any, rule: str) -> None:
    data = small_data()
    walked = walk_split(model, data, "dev", 7, batch_size=5)
    middle = None if rule == "agreement" else walked.scores[rule][2:6].nanmedian().item() * 1.0001
    how = Anytime(rule, middle, most=7)
    with model.run_as(anytime=how), torch.no_grad():
        taken = [
            model({name: x[None] for name, x in each.content.items()}).solution.steps.item()
            for each in data.splits["dev"]
        ]
    assert walked.stops(how).tolist() == taken
    assert model.anytime is None


def test_a_tolerance_ends_the_walk_as_it_ends_the_model() -> None:
    torch.manual_seed(0)
    model = small_model(dropout=0.0, steps=4, tol=0.5).eval()
    walked = walk_split(model, small_data(), "dev", 9)  # type: ignore[arg-type]
    assert walked.rested.max() < 9
    for row, rested in enumerate(walked.rested.tolist()):
        assert walked.scores["change"][rested + 1 :, row].abs().max() == 0


@pytest.mark.parametrize("tol", [0.0, 0.3])
def test_the_walk_of_choices_stops_where_the_model_does(tol: float) -> None:
    """A choice that has settled waits for the others, and what the rule sees of it meanwhile is part of the walk."""
    torch.manual_seed(0)
    model: Any = small_model(torch.float64, dropout=0.0, steps=4, tol=tol, head="choices").eval()
    made = small_data(dtype=torch.float64, complete=True)
    texts = [each.content["text"] for each in made.splits["dev"]]
    dev = [
        replace(each, content={**each.content, "text": (texts[row], texts[row - 1], texts[row - 2])})
        for row, each in enumerate(made.splits["dev"])
    ]
    data = replace(made, splits={"dev": dev}, head="choices")
    walked = walk_split(model, data, "dev", 9)
    assert walked.quality.shape == (10, len(dev))
    for rule in RULES:
        threshold = None if rule == "agreement" else walked.scores[rule][2:6].median().item() * 1.0001
        how = Anytime(rule, threshold, most=9)
        with model.run_as(anytime=how):
            _, output = answer_batch(model, dev, data.widths)
        taken = output.solution.steps.reshape(len(dev), 3).amax(1)
        assert walked.stops(how).tolist() == taken.tolist(), rule
        quality = answer_quality(output.logits, torch.stack([each.target for each in dev]), "choices", ACCURACY.name)
        assert torch.equal(walked.quality.gather(0, taken[None])[0], quality)


def test_a_calibration_prints_itself_and_goes_through_json(model: Any) -> None:
    found = calibrate_stopping(model, small_data(), risk=0.5, most=6)
    assert found.most == 6
    assert found.read == 4
    text = str(found)
    assert "split dev: " in text
    assert "promise: at most 0.5 of accuracy lost against step 6, in 95% of resamples" in text
    assert plain(found) == loads(dumps(found).encode(), "here")
    assert calibrate_stopping(model, small_data(), risk=0.5).most == 24
    assert model.anytime is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": "residuals"}, "did you mean 'residual'"),
        ({"risk": -1}, "risk is the accuracy that may be lost"),
        ({"confidence": 2}, "confidence is a share"),
        ({"most": 1}, "most must be a whole number"),
        ({"split": "devv"}, "no split 'devv'"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_sentence(model: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        calibrate_stopping(model, small_data(), **options)


def test_a_model_that_does_not_iterate_has_nothing_to_stop_at() -> None:
    with pytest.raises(CalibrationError, match="Concat does not iterate"):
        calibrate_stopping(meq.Concat({"image": 5, "text": 4}, 2, 8), small_data())


def row(*values: float) -> Tensor:
    return torch.tensor([values])


def test_the_quality_of_an_answer_is_that_of_its_head() -> None:
    assert answer_quality(row(1, 2), torch.tensor([1]), "classes", ACCURACY.name).tolist() == [1.0]
    assert answer_quality(row(1, 2, 0), row(0.3, 0.6, 1), "labels", SOFT_ACCURACY.name).item() == pytest.approx(0.6)
    assert answer_quality(row(1, -2, 1), row(1, 0, 0), "labels", MICRO_F1.name).item() == pytest.approx(2 / 3)
    assert answer_quality(row(1.5), torch.tensor([2.0]), "score", "R2").item() == -0.5
    logits = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]] * 2)
    real = torch.tensor([[True, True, False]] * 2)
    shares = answer_quality(logits, torch.tensor([[1, 1, 1], [-1, -1, 1]]), "tokens", "", real).tolist()
    assert shares[0] == 0.5
    assert math.isnan(shares[1]), "nothing is asked"
