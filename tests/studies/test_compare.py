"""Arms compared over seeds, and over examples: as in the textbook, for every metric, the same bytes every time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from studies.samples import record, records, study
from torch import Tensor

from meq.data.metrics import METRICS, metric_named
from meq.studies import compare, make_study, make_tables, records_of, verify
from meq.studies.compare import DRAWS, Records, _counts, answers_of, called_with, intervals, resampled, verdict
from meq.studies.tables import table_files
from meq.studies.verify import read_manifest, write_manifest
from meq.tables import as_text
from meq.training.predictions import Predictions


def test_mean_spread_and_paired_difference_are_those_of_the_textbook() -> None:
    scores = {"a": {0: 0.5, 1: 0.6, 2: 0.7}, "b": {0: 0.6, 1: 0.8, 2: 0.7}}
    ours, theirs = compare(study("a", "b"), records(scores), split="dev", metric="accuracy")
    assert (ours.mean, ours.spread) == (pytest.approx(0.6), pytest.approx(0.1))
    assert (ours.verdict, ours.difference) == ("reference", None)
    assert theirs.mean == pytest.approx(0.7)
    assert theirs.difference == pytest.approx((0.1 + 0.2 + 0.0) / 3)
    assert theirs.difference_spread == pytest.approx(0.1), "of the differences, not of the arms"
    assert theirs.verdict == "not called", "0.1 is not more than twice 0.1"
    assert (theirs.runs, theirs.parameters) == ("3 of 3", 7)


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ((1.0, 2.0, 3.0), "not called"),  # mean 2, sample SD 1: twice it is reached, not exceeded
        ((1.01, 2.0, 3.0), "called"),
        ((-1.01, -2.0, -3.0), "called"),
        ((0.0, 0.0, 0.0), "not called"),
        ((0.1, 0.1, 0.1), "called"),
        ((0.1, 0.1), "too few seeds"),  # two that happen to agree would always be called
        ((0.0004, 0.0004), "too few seeds"),
        ((0.1,), "too few seeds"),
        ((), "too few seeds"),
        ((0.1, math.nan), "not a number"),
        ((math.inf, 0.0), "not a number"),
    ],
)
def test_a_difference_is_called_when_it_exceeds_twice_its_spread(differences: tuple, expected: str) -> None:
    assert verdict(differences) == expected


def test_two_seeds_are_too_few_in_the_table_and_in_its_texts() -> None:
    scores = {"a": {0: 0.5, 1: 0.6}, "b": {0: 0.5004, 1: 0.6004}}
    line = compare(study("a", "b", seeds=(0, 1)), records(scores), split="dev", metric="accuracy")[1]
    assert line.verdict == "too few seeds"
    assert line.difference == pytest.approx(0.0004)
    shown = as_text(make_tables(study("a", "b", seeds=(0, 1)), records(scores))["dev-accuracy"])
    assert "too few seeds" in shown
    with called_with(2):  # as tables of the first form are verified
        assert verdict((0.0004, 0.0004)) == "called"
        assert verdict((0.1,)) == "one seed"
    assert verdict((0.0004, 0.0004)) == "too few seeds"


def test_the_spread_is_that_of_a_sample_not_of_a_population() -> None:
    # with the population's SD, 0.816, a mean of 1.7 would be called
    assert verdict((0.7, 1.7, 2.7)) == "not called"


def test_a_failed_run_is_shown_and_no_verdict_is_given() -> None:
    scores = {"a": {0: 0.5, 1: 0.6, 2: 0.7}, "b": {0: 0.9, 1: None, 2: 0.9}}
    line = compare(study("a", "b"), records(scores), split="dev", metric="accuracy")[1]
    assert line.runs == "2 of 3 (seed 1 failed)"
    assert line.verdict == "incomplete"
    assert line.difference == pytest.approx(0.3), "over the pairs that there are"


def test_a_missing_run_of_the_reference_leaves_every_arm_without_a_verdict() -> None:
    scores = {"a": {0: 0.5, 2: 0.7}, "b": {0: 0.9, 1: 0.9, 2: 0.9}}
    ours, theirs = compare(study("a", "b"), records(scores), split="dev", metric="accuracy")
    assert ours.runs == "2 of 3 (seed 1 missing)"
    assert (theirs.runs, theirs.verdict) == ("3 of 3", "incomplete")


def test_an_arm_without_any_run_has_nothing_to_show() -> None:
    line = compare(study("a", "b"), records({"a": {0: 0.5}}), split="dev", metric="accuracy")[1]
    assert line.runs == "0 of 3 (seed 0 missing, seed 1 missing, seed 2 missing)"
    assert (line.mean, line.spread, line.difference, line.parameters) == (None, None, None, None)


def test_a_run_that_an_alarm_stopped_counts_and_is_mentioned() -> None:
    from dataclasses import replace

    found = records({"a": {0: 0.5, 1: 0.6, 2: 0.7}})
    found["a", 1] = replace(record("a", 1, 0.6), status="stopped by an alarm")
    (line,) = compare(study("a"), found, split="dev", metric="accuracy")
    assert line.runs == "3 of 3 (seed 1 stopped by an alarm)"
    assert line.mean == pytest.approx(0.6)


def test_a_score_that_is_not_a_number_is_not_hidden() -> None:
    scores = {"a": {0: 0.5, 1: 0.6, 2: 0.7}, "b": {0: 0.5, 1: math.nan, 2: 0.7}}
    line = compare(study("a", "b"), records(scores), split="dev", metric="accuracy")[1]
    assert math.isnan(line.mean)
    assert math.isnan(line.spread)
    assert line.verdict == "not a number"


# -- over examples -----------------------------------------------------------------------------------------------------


COUNT = 40


def classes(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(COUNT, 2, generator=generator).round(decimals=1), torch.arange(COUNT) % 2


def soft(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(COUNT, 3, generator=generator), torch.rand(COUNT, 3, generator=generator)


def scores(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(COUNT, generator=generator).mul(2).round()
    return (truth + torch.randn(COUNT, generator=generator))[:, None] + 100, truth + 100


def around_zero(seed: int) -> tuple[Tensor, Tensor]:
    made, truth = scores(seed)
    return made - 100, truth - 100


def tokens(seed: int) -> tuple[Tensor, Tensor]:
    """Three tokens, some of which are not asked, most of them answered right."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(-1, 2, (COUNT, 3), generator=generator)
    right = torch.nn.functional.one_hot(truth.clamp(min=0), 2) * 2.0
    return right + torch.randn(COUNT, 3, 2, generator=generator), truth


FORMS: dict[str, Callable[[int], tuple[Tensor, Tensor]]] = {
    "token accuracy": tokens,
    "whole accuracy": tokens,
    "accuracy": classes,
    "auroc": classes,
    "balanced accuracy": classes,
    "macro f1": classes,
    "macro auroc": classes,
    "average precision": classes,
    "negative log loss": classes,
    "negative brier": classes,
    "Acc-7": classes,
    "soft accuracy": soft,
    "micro f1": soft,
    "exact match": soft,
    "r2": scores,
    "pearson": scores,
    "negative mae": scores,
    "negative rmse": scores,
    "Acc-2": around_zero,
    "Acc-2 without 0": around_zero,
}


def given(form: str, seed: int = 0) -> Predictions:
    logits, target = FORMS[form](seed)
    return Predictions(ids=[f"{row}" for row in range(COUNT)], logits=logits, target=target)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_over_draws_is_that_metric_of_the_drawn_examples(metric: str) -> None:
    """Draw by draw, against the data set's own function."""
    answers, known = given(metric), metric_named(metric, {})
    some = next(_counts(COUNT))[:30]
    found = resampled(record("a", 0, 0.5), metric, answers, some)
    for counts, value in zip(some, found, strict=True):
        rows = torch.from_numpy(np.repeat(np.arange(COUNT), counts))
        assert value == pytest.approx(known(answers.logits[rows], answers.target[rows]), abs=1e-9), metric


def test_seven_classes_of_scores_go_by_the_rule_of_the_data() -> None:
    answers = given("Acc-2")
    for rule in ("round", "sdk"):
        sample = record("a", 0, 0.5)
        sample = replace(sample, data=replace(sample.data, facts={"target": "score", "rule": rule}))
        once = np.ones((1, COUNT), dtype=np.int16)
        expected = metric_named("Acc-7", sample.data.facts)(answers.logits, answers.target)
        assert resampled(sample, "Acc-7", answers, once)[0] == pytest.approx(expected, abs=1e-12)


def test_a_draw_in_which_a_metric_is_no_number_is_no_number() -> None:
    answers, taken = given("auroc"), np.zeros((1, COUNT), dtype=np.int16)
    taken[0, 0] = COUNT  # one class only
    assert math.isnan(resampled(record("a", 0, 0.5), "auroc", answers, taken)[0])
    bad = replace(answers, logits=answers.logits * math.nan)
    assert np.isnan(resampled(record("a", 0, 0.5), "auroc", bad, taken)).all()


# -- intervals ---------------------------------------------------------------------------------------------------------


def right_or_wrong(right: list[bool]) -> Predictions:
    target = torch.zeros(len(right), dtype=torch.long)
    logits = torch.tensor([[1.0, 0.0] if each else [0.0, 1.0] for each in right])
    return Predictions(ids=[f"{row}" for row in range(len(right))], logits=logits, target=target)


def made(runs: dict[tuple[str, int], list[bool]]) -> tuple[Records, dict[tuple[str, int], Predictions]]:
    records = {run: record(*run, sum(right) / len(right)) for run, right in runs.items()}
    return records, {run: right_or_wrong(right) for run, right in runs.items()}


def test_the_interval_is_that_of_the_mean_difference_of_examples() -> None:
    """Against the normal approximation, with the paired differences averaged over seeds."""
    generator = np.random.default_rng(0)
    count, seeds = 400, (0, 1, 2)
    base = generator.random(count) < 0.6
    runs = {("a", seed): (base ^ (generator.random(count) < 0.1)).tolist() for seed in seeds}
    runs |= {("b", seed): (base | (generator.random(count) < 0.2)).tolist() for seed in seeds}
    records, kept = made(runs)
    (found,) = intervals(
        study("a", "b"), records, lambda arm, seed, split: kept[arm, seed], split="dev", metrics=["accuracy"]
    )["accuracy"]
    by_example = np.mean([np.array(runs["b", seed], float) - np.array(runs["a", seed], float) for seed in seeds], 0)
    error = 1.96 * by_example.std() / math.sqrt(count)
    assert found.difference == pytest.approx(by_example.mean())
    assert found.low == pytest.approx(by_example.mean() - error, abs=0.006)
    assert found.high == pytest.approx(by_example.mean() + error, abs=0.006)
    assert (found.seeds, found.examples) == (3, count)


def test_arms_that_answer_alike_have_an_interval_of_nothing() -> None:
    same = [True, False] * 20
    records, kept = made({(arm, seed): same for arm in "ab" for seed in (0, 1, 2)})
    (found,) = intervals(
        study("a", "b"), records, lambda arm, seed, split: kept[arm, seed], split="dev", metrics=["accuracy"]
    )["accuracy"]
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)


def test_answers_to_other_examples_are_not_paired() -> None:
    records, kept = made({(arm, seed): [True, False] * 20 for arm in "ab" for seed in (0, 1, 2)})
    kept["b", 1] = replace(kept["b", 1], ids=[f"other {row}" for row in range(40)])
    (found,) = intervals(
        study("a", "b"), records, lambda arm, seed, split: kept[arm, seed], split="dev", metrics=["accuracy"]
    )["accuracy"]
    assert (found.low, found.high) == (None, None)


def test_draws_never_change() -> None:
    """Committed tables hang on them."""
    counts = np.concatenate(list(_counts(5)))
    assert counts.shape == (DRAWS, 5)
    assert counts[:3].tolist() == [[1, 0, 0, 3, 1], [1, 1, 1, 1, 1], [2, 1, 1, 0, 1]]
    assert (counts.sum(1) == 5).all()
    assert np.array_equal(counts, np.concatenate(list(_counts(5))))


def test_ten_thousand_examples_take_a_few_seconds() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 10_000
    kept = Predictions(
        ids=[f"{row}" for row in range(count)],
        logits=torch.randn(count, 2, generator=generator),
        target=torch.arange(count) % 2,
    )
    records = {(arm, 0): record(arm, 0, 0.5, metric="auroc") for arm in "ab"}
    started = time.process_time()
    intervals(study("a", "b", seeds=(0,)), records, lambda *run: kept, split="dev", metrics=["auroc"])
    assert time.process_time() - started < 10


# -- in a study --------------------------------------------------------------------------------------------------------


def test_a_complete_study_has_a_second_table_and_one_under_way_does_not(finished: Path) -> None:
    study = make_study("statements-tiny")
    records = records_of(finished, study)
    shown = as_text(make_tables(study, records, answers=answers_of(finished))["dev-accuracy-bootstrap"])
    assert "meq" in shown
    assert "3 of 3" in shown
    assert "2,000 draws of the examples" in shown
    del records["meq", 2]  # type: ignore[attr-defined]
    assert set(make_tables(study, records, answers=answers_of(finished))) == {"dev-accuracy", "test-accuracy", "runs"}


def test_a_changed_interval_is_a_fault_and_so_is_a_removed_one(copied: Path) -> None:
    table = copied / "tables" / "dev-accuracy-bootstrap.csv"
    content = table.read_bytes()
    table.write_bytes(content.replace(b"24", b"25", 1))
    assert {fault.file for fault in verify(copied).faults} == {"tables/dev-accuracy-bootstrap.csv"}
    table.unlink()
    assert {fault.file for fault in verify(copied).faults} == {"tables/dev-accuracy-bootstrap.csv"}
    table.write_bytes(content)
    assert verify(copied).ok


def test_a_study_of_the_first_form_verifies_without_intervals_and_gets_them_when_it_is_run(copied: Path) -> None:
    from rich.console import Console

    from meq.studies import run_study

    study = make_study("statements-tiny")
    for path in (copied / "tables").glob("*-bootstrap.*"):
        path.unlink()
    for name, content in table_files(study, records_of(copied, study), form=1).items():
        assert (copied / "tables" / name).read_bytes() == content, "with three seeds the older tables are the same"
    manifest = read_manifest(copied)
    older = {name: entry for name, entry in manifest.files.items() if "-bootstrap." not in name}
    write_manifest(copied, replace(manifest, table_format=1, files=older))
    assert verify(copied).faults == []
    run_study(study, copied, console=Console(quiet=True))
    assert (copied / "tables" / "dev-accuracy-bootstrap.txt").is_file()
    assert verify(copied).faults == []
