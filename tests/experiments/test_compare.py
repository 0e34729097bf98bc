from __future__ import annotations

import math

import pytest
from experiments.samples import record, records, study

from meq.experiments import compare, make_tables
from meq.experiments.compare import called_with, verdict
from meq.experiments.render import as_text


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
