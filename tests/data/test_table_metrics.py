from __future__ import annotations

import math

import pytest
import torch

from meq.data.table_metrics import EXACT_MATCH, MICRO_F1, NEGATIVE_MAE, PEARSON, R2

TARGET = torch.tensor([1.0, 2.0, 3.0, 6.0])


def test_a_perfect_score_has_the_best_of_every_value() -> None:
    for logits in (TARGET, TARGET[:, None]):
        assert R2(logits, TARGET) == 1
        assert PEARSON(logits, TARGET) == pytest.approx(1)
        assert NEGATIVE_MAE(logits, TARGET[:, None]) == 0


def test_the_mean_as_an_answer_has_an_r2_of_0_and_no_correlation() -> None:
    mean = torch.full((4, 1), 3.0)
    assert R2(mean, TARGET) == 0
    assert math.isnan(PEARSON(mean, TARGET))
    assert NEGATIVE_MAE(mean, TARGET) == -1.5


def test_correlation_forgives_scale_and_sign_shows() -> None:
    assert PEARSON(10 * TARGET[:, None] + 5, TARGET) == pytest.approx(1)
    assert PEARSON(-TARGET[:, None], TARGET) == pytest.approx(-1)
    assert R2(10 * TARGET[:, None], TARGET) < 0


def test_correlation_agrees_with_torch() -> None:
    score, target = torch.randn(2, 100, dtype=torch.float64)
    expected = torch.corrcoef(torch.stack([score, target]))[0, 1].item()
    assert PEARSON(score[:, None], target) == pytest.approx(expected)


def test_r2_of_targets_that_are_all_the_same_is_no_number() -> None:
    assert not math.isfinite(R2(torch.zeros(3, 1), torch.ones(3)))


def test_f1_and_exact_match_by_hand() -> None:
    logits = torch.tensor([[1.0, -1.0, 2.0], [-1.0, -1.0, 3.0]])
    target = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert MICRO_F1(logits, target) == pytest.approx(2 * 2 / (3 + 3))
    assert EXACT_MATCH(logits, target) == 0.5


def test_f1_of_nothing_chosen_where_nothing_is_right_is_1() -> None:
    assert MICRO_F1(torch.full((2, 3), -1.0), torch.zeros(2, 3)) == 1
    assert MICRO_F1(torch.full((2, 3), -1.0), torch.ones(2, 3)) == 0
