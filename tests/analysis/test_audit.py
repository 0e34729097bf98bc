"""Every way of not iterating is made here, and has to be called by its name; what iterates well gets no finding."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from analysis.collapses import READ, Approach, Drifting, Jump, Remembering, Still, Toy, problems

import meq
from meq.analysis import audit
from meq.analysis.answers import Estimate, estimate
from meq.analysis.audit import audit_model
from meq.analysis.audit_findings import (
    AGREE,
    DEPTH,
    DRIFT,
    INFORMS,
    LAZY,
    LITTLE,
    ONE_STEP,
    PATH,
    RESIDUAL,
    UNRELATED,
    Audit,
    check_start,
)


def check(found: Audit, place: int) -> object:
    return found.checks[place - 1]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what is made here fails long before 50 K; the healthy one is walked all the way."""
    monkeypatch.setattr(audit, "MOST_STEPS", 50)


@pytest.fixture(scope="module")
def healthy() -> Audit:
    return audit_model(Toy(Approach()), problems())


def test_a_contraction_that_takes_longer_for_harder_samples_iterates_and_keeps(healthy: Audit) -> None:
    assert healthy.findings == ()
    assert healthy.open == ()
    assert healthy.verdict == "iterates and keeps"
    assert all(check.fault is False for check in healthy.checks)


def test_the_numbers_of_the_healthy_one_are_those_of_its_closed_form(healthy: Audit) -> None:
    rate = torch.cat([batch.features["rate"] for batch in problems()])[:, 0]
    turned = (1 - rate) ** READ < 0.5
    start, first, read, *_ = healthy.along
    assert [depth.step for depth in healthy.along] == [0, 1, 10, 20, 50, 500]
    assert start.score == 0.0
    assert read.score == pytest.approx(float(turned.double().mean()))
    assert first.score == pytest.approx(float((rate > 0.5).double().mean()))
    assert healthy.gain.value == pytest.approx(read.score)
    assert healthy.gain.low < healthy.gain.value < healthy.gain.high
    assert healthy.errors == int((~turned).sum())
    assert read.change.value == 0.0
    assert read.same.value == 1.0
    passed = torch.ceil(math.log(0.5) / torch.log1p(-rate))
    assert healthy.settling.fewest == 1
    assert healthy.settling.most == int(passed.max())
    assert healthy.settling.median == pytest.approx(float(passed.median()))
    assert healthy.settling.correlation.value > 0.95


def test_a_map_that_stays_where_it_starts_computes_nothing() -> None:
    found = audit_model(Toy(Still()), problems(mislabelled=0.3))
    assert {LAZY, PATH, DEPTH} <= set(found.findings)
    assert found.verdict.startswith("does not iterate: its start scores as its end does")
    assert found.gain == Estimate(0.0, 0.0, 0.0)
    assert DRIFT not in found.findings, "it keeps, for it never had anything to lose"
    assert found.restarts[0].agreeing.value < 0.6
    assert found.restarts[0].apart["v"] == pytest.approx(1.0), "it stays with the sample whose state it was given"


def test_a_map_that_is_there_after_one_step_does_not_iterate() -> None:
    found = audit_model(Toy(Jump()), problems(mislabelled=0.3))
    assert ONE_STEP in found.findings
    assert LAZY not in found.findings
    assert found.verdict.startswith("does not iterate: its first step does all the work")
    assert DEPTH in found.findings


def test_a_map_that_remembers_its_start_is_path_dependent() -> None:
    found = audit_model(Toy(Remembering()), problems())
    assert found.findings == (PATH,)
    assert found.verdict == "iterates, but where it ends depends on where it starts"
    another, noise = (each for each in found.restarts if each.steps == 50)
    assert (another.start, noise.start) == ("another's end", "noise")
    assert another.agreeing.high < AGREE
    assert another.alignment["u"] < 0.5


def test_one_rate_for_all_takes_the_same_steps_for_all() -> None:
    found = audit_model(Toy(Approach()), problems(rate=0.2))
    assert found.findings == (DEPTH,)
    assert found.settling.fewest == found.settling.most == 4
    assert found.settling.usual == 1.0
    assert math.isnan(found.settling.correlation.value)
    assert "the same number of steps whatever the problem" in str(found)
    assert found.open == (RESIDUAL,), "no answer is wrong, so there is nothing for the residual to tell"
    assert math.isnan(found.auroc.value)


def test_a_difficulty_that_has_nothing_to_do_with_the_steps_is_named() -> None:
    batches = problems(400)
    generator = torch.Generator().manual_seed(9)
    for batch in batches:
        batch.difficulty = torch.rand(len(batch.target), generator=generator)
    found = audit_model(Toy(Approach()), batches)
    assert found.findings == (UNRELATED,)
    assert abs(found.settling.correlation.value) < 0.15


def test_a_residual_that_is_unrelated_to_errors_says_nothing() -> None:
    found = audit_model(Toy(Approach()), problems(600, slowest=0.15, mislabelled=0.3))
    assert found.findings == (RESIDUAL,)
    assert found.auroc.high < INFORMS
    assert found.verdict == f"iterates and keeps; also: {RESIDUAL}"


def test_an_answer_that_turns_after_k_drifts_and_the_last_good_step_is_named() -> None:
    found = audit_model(Toy(Drifting()), problems(slowest=0.15))
    assert DRIFT in found.findings
    assert found.kept_to == READ
    assert found.verdict.startswith(f"iterates, but does not keep past {READ} steps")
    at_twice = next(depth for depth in found.along if depth.step == 2 * READ)
    assert at_twice.change.high < -LITTLE
    assert "points below that at K" in str(found)


def test_few_samples_lead_to_no_verdict() -> None:
    found = audit_model(Toy(Still()), problems(8, mislabelled=0.3))
    assert found.findings == ()
    assert len(found.open) == 5
    assert found.verdict.startswith("whether it iterates cannot be told on these samples")
    assert "20 samples are the fewest that can tell" in str(found)


def test_a_small_gain_that_noise_could_hide_is_left_open() -> None:
    unsure = check_start(Estimate(0.01, -0.03, 0.06), Estimate(0.2, 0.1, 0.3), read=10, samples=100)
    sure = check_start(Estimate(0.01, 0.0, 0.015), Estimate(0.2, 0.1, 0.3), read=10, samples=100)
    fine = check_start(Estimate(0.05, -0.01, 0.11), Estimate(0.2, 0.1, 0.3), read=10, samples=100)
    assert [each.fault for each in (unsure, sure, fine)] == [None, True, False]


def test_answers_per_token_count_the_tokens_that_are_asked() -> None:
    batches = problems(60, tokens=5, size=30)
    found = audit_model(Toy(Approach(), head="tokens"), batches)
    asked = sum(int((batch.target >= 0).sum()) for batch in batches)
    assert found.tokens
    assert (found.samples, found.answers) == (60, asked)
    right = [((1 - batch.features["rate"][..., 0]) ** READ < 0.5)[batch.target >= 0] for batch in batches]
    assert found.along[2].score == pytest.approx(float(torch.cat(right).double().mean()))
    assert {LAZY, ONE_STEP, PATH, DEPTH, UNRELATED, DRIFT}.isdisjoint(found.findings)
    assert f"60 samples, {asked} tokens asked" in str(found)


def test_a_token_is_known_to_be_wrong_by_its_own_residual() -> None:
    """v(K) = (1 - 2 left) x with left = (1 - rate)^K, so that a token's residual is 2 rate left / |1 - 2 left|."""
    batches = problems(60, tokens=5, size=30)
    found = audit_model(Toy(Approach(), head="tokens"), batches)
    left = [(1 - batch.features["rate"][..., 0]) ** READ for batch in batches]
    residuals = [
        batch.features["rate"][..., 0] * 2 * rest / (1 - 2 * rest).abs()
        for batch, rest in zip(batches, left, strict=True)
    ]
    asked = [batch.target >= 0 for batch in batches]
    wrong = torch.cat([(rest > 0.5)[mask] for rest, mask in zip(left, asked, strict=True)])
    score = torch.cat([each[mask] for each, mask in zip(residuals, asked, strict=True)])
    pairs = (score[wrong][:, None] > score[~wrong]).double().mean()
    assert found.auroc.value == pytest.approx(float(pairs), abs=1e-9)
    assert "AUROC of a token's own residual at K" in str(found)


def test_tokens_of_one_sample_are_no_strangers_so_their_interval_is_wider() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(0)).round().repeat_interleave(10).double()
    together = estimate(values, 0, torch.arange(40).repeat_interleave(10))
    apart = estimate(values, 0)
    assert together.value == apart.value == pytest.approx(float(values.mean()))
    assert together.high - together.low > 2 * (apart.high - apart.low)


@pytest.mark.parametrize("head", ["labels", "score"])
def test_soft_labels_and_numbers_are_audited_by_scores_of_their_own(head: str) -> None:
    batches = problems()
    for batch in batches:
        chosen = torch.nn.functional.one_hot(batch.target, 3).double()
        batch.target = chosen if head == "labels" else batch.features["x"][:, 0].clone()
    found = audit_model(Toy(Approach(), head=head), batches)
    assert found.score_name == {"labels": "soft accuracy", "score": "error removed"}[head]
    assert {LAZY, ONE_STEP, PATH, DEPTH, UNRELATED, DRIFT}.isdisjoint(found.findings)
    still = audit_model(Toy(Still(), head=head), batches)
    assert {LAZY, PATH, DEPTH} <= set(still.findings)


def test_without_a_stated_difficulty_the_loss_after_one_step_stands_for_it() -> None:
    found = audit_model(Toy(Approach()), problems(stated=False))
    assert found.settling.difficulty == "the loss after one step"
    assert found.settling.correlation.low > 0.2


def test_a_long_walk_is_capped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_STEPS", 70)
    found = audit_model(Toy(Approach()), problems(40))
    assert [depth.step for depth in found.along] == [0, 1, 10, 20, 50, 70]
    assert found.capped == 70
    assert "50 K = 500 steps were not walked: 70 are the most" in str(found)


def test_batches_of_one_have_no_other_sample_to_start_from() -> None:
    found = audit_model(Toy(Approach()), problems(24, size=1))
    another, noise = (each for each in found.restarts if each.steps == 50)
    assert another.samples == 0
    assert math.isnan(another.agreeing.value)
    assert noise.samples == 24
    assert "no batch has two samples" in str(found)


def test_the_same_seed_gives_the_same_audit_and_the_model_is_left_as_it_was() -> None:
    model = Toy(Approach()).train()
    first, second, other = (audit_model(model, problems(40), seed=seed) for seed in (3, 3, 4))
    assert repr(first) == repr(second)
    assert repr(first) != repr(other)
    assert model.training


def test_a_page_names_every_question_and_fits_on_it(healthy: Audit) -> None:
    page = str(healthy)
    assert page.startswith("verdict: iterates and keeps\n")
    assert [line[:2] for line in page.splitlines() if line[:1].isdigit() and line[1:2] == "."] == [
        f"{k}." for k in range(1, 6)
    ]
    assert len(page.splitlines()) <= 40
    assert max(map(len, page.splitlines())) <= 120


def test_a_real_model_that_is_untrained_goes_through_with_masks_and_missing_modalities() -> None:
    torch.manual_seed(0)
    model = meq.MutualEquilibrium({"image": 5, "text": 4}, 3, dim=8, heads=2, steps=2, head_width=8)
    batches = []
    for _ in range(2):
        text = torch.ones(12, 3, dtype=torch.bool)
        text[3, 1:] = False
        text[5] = False
        features = {"image": torch.randn(12, 4, 5), "text": torch.randn(12, 3, 4)}
        batches.append(SimpleNamespace(features=features, masks={"text": text}, target=torch.randint(3, (12,))))
    found = audit_model(model, batches)
    assert found.samples == 24
    assert [depth.step for depth in found.along] == [0, 1, 2, 4, 10, 50]
    assert {each.alignment.keys() == {"image", "text"} for each in found.restarts} == {True}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda batch: setattr(batch, "target", None), "batch 1 has no target: an audit is of right and wrong answers"),
        (lambda batch: setattr(batch, "target", batch.target[:3]), r"batch 1: its target has shape \(3,\)"),
        (lambda batch: setattr(batch, "difficulty", torch.zeros(3)), r"batch 1: difficulty has shape \(3,\)"),
        (lambda batch: setattr(batch, "difficulty", None), "some batches say how hard their samples are"),
    ],
)
def test_batches_that_cannot_be_audited_are_named(change, words: str) -> None:
    batches = problems(20, size=10)
    change(batches[1])
    with pytest.raises(ValueError, match=words):
        audit_model(Toy(Approach()), batches)


@pytest.mark.usefixtures("unchecked")
def test_models_without_steps_and_multiple_choice_are_refused() -> None:
    with pytest.raises(ValueError, match="does not iterate, so there are no steps"):
        audit_model(meq.Concat({"a": 2, "b": 2}, 2, dim=4), [])
    with pytest.raises(ValueError, match="not made for multiple choice"):
        audit_model(Toy(Approach(), head="choices"), problems(10))
    with pytest.raises(ValueError, match="there were no batches"):
        audit_model(Toy(Approach()), [])
    nothing = problems(10, tokens=2, size=10)
    nothing[0].target.fill_(-1)
    with pytest.raises(ValueError, match="no token is asked"):
        audit_model(Toy(Approach(), head="tokens"), nothing)


def test_an_audit_is_plain_values_and_can_be_written_as_json(healthy: Audit) -> None:
    from meq.records import dumps

    assert '"read": 10' in dumps(healthy)
    assert dataclasses.asdict(healthy)["settling"]["fewest"] == 1
