from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from meq.data.metrics import (
    ACCURACY,
    AUROC,
    AVERAGE_PRECISION,
    BALANCED_ACCURACY,
    EXACT_MATCH,
    MACRO_AUROC,
    MACRO_F1,
    MICRO_F1,
    NEGATIVE_BRIER,
    NEGATIVE_LOG_LOSS,
    NEGATIVE_MAE,
    NEGATIVE_RMSE,
    OF_CLASSES,
    PEARSON,
    R2,
    SOFT_ACCURACY,
    TOKEN_ACCURACY,
    WHOLE_ACCURACY,
    as_shown,
    joint_accuracy,
)


def pairs_won(score: Tensor, target: Tensor) -> float:
    """The definition, over all pairs of a positive and a negative."""
    difference = score[target == 1][:, None] - score[target == 0][None]
    return ((difference > 0).double() + (difference == 0).double() / 2).mean().item()


@pytest.mark.parametrize("levels", [3, 1000])
def test_auroc_is_the_share_of_pairs_in_the_right_order(levels: int) -> None:
    score = torch.randint(levels, (300,)).double()
    target = (torch.rand(300) < 0.3).long()
    logits = torch.stack([torch.full_like(score, 2.0), score], 1)
    assert AUROC(logits, target) == pytest.approx(pairs_won(score, target), abs=1e-12)
    assert AUROC(score[:, None], target) == pytest.approx(pairs_won(score, target), abs=1e-12)


def test_auroc_of_perfect_reversed_and_constant_scores() -> None:
    target = torch.tensor([0, 1, 0, 1, 1])
    assert AUROC(target[:, None].float(), target) == 1
    assert AUROC(-target[:, None].float(), target) == 0
    assert AUROC(torch.zeros(5, 2), target) == 0.5


def test_auroc_reads_both_logits_not_the_second_alone() -> None:
    logits = torch.tensor([[0.0, 1.0], [5.0, 4.0]])  # the second sample has the higher logit and the lower odds
    assert AUROC(logits, torch.tensor([1, 0])) == 1


def test_auroc_of_scores_that_are_no_numbers_is_none() -> None:
    assert math.isnan(AUROC(torch.tensor([[0.0, math.nan], [0.0, 1.0]]), torch.tensor([0, 1])))


def test_auroc_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="both classes, got 3 positive and 0 negative"):
        AUROC(torch.zeros(3, 2), torch.ones(3).long())
    with pytest.raises(ValueError, match="one or two logits per sample, got 3"):
        AUROC(torch.zeros(2, 3), torch.tensor([0, 1]))


def test_accuracy_counts_and_soft_accuracy_weighs_the_answer_given() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]])
    assert ACCURACY(logits, torch.tensor([0, 1])) == 0.5
    worth = torch.tensor([[0.6, 1.0, 0.0], [0.0, 1.0, 0.3]])
    assert SOFT_ACCURACY(logits, worth) == pytest.approx(0.45)


def test_token_accuracy_counts_asked_tokens_and_whole_accuracy_examples_without_a_mistake() -> None:
    said = torch.tensor([[0, 1, 2], [1, 1, 1], [2, 2, 2], [0, 0, 0]])
    target = torch.tensor([[0, 1, 2], [1, -1, 0], [2, -1, -1], [-1, -1, -1]])
    logits = torch.nn.functional.one_hot(said, 3).float()
    assert TOKEN_ACCURACY(logits, target) == pytest.approx(5 / 6)
    assert WHOLE_ACCURACY(logits, target) == pytest.approx(2 / 3), "an example that is asked nothing is left out"
    assert TOKEN_ACCURACY.name == "token accuracy"
    assert WHOLE_ACCURACY.name == "whole accuracy"


def test_where_no_token_is_asked_there_is_no_share() -> None:
    logits, target = torch.randn(2, 3, 4), torch.full((2, 3), -1)
    assert math.isnan(TOKEN_ACCURACY(logits, target))
    assert math.isnan(WHOLE_ACCURACY(logits, target))


def test_both_must_be_right_to_count() -> None:
    answers = torch.eye(4)  # says 0, 1, 2, 3
    right, shifted = torch.arange(4), torch.tensor([0, 1, 0, 0])
    assert joint_accuracy(answers, right, answers, right) == 1
    assert joint_accuracy(answers, right, answers, shifted) == 0.5
    assert joint_accuracy(answers, torch.tensor([1, 1, 2, 3]), answers, shifted) == 0.25


def test_joint_accuracy_refuses_splits_of_different_length() -> None:
    with pytest.raises(ValueError, match="same questions"):
        joint_accuracy(torch.eye(4), torch.arange(4), torch.eye(4)[:3], torch.arange(3))


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


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_metrics_of_classes_are_those_of_scikit_learn(classes: int, tied: bool) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(120, classes, generator=generator, dtype=torch.float64)
    logits = logits.round() if tied else logits
    target = torch.randint(classes, (120,), generator=generator)
    target[:40] = 0
    chances, answer = logits.softmax(1).numpy(), logits.argmax(1).numpy()
    truth, every = target.numpy(), list(range(classes))
    second = chances[:, 1]
    assert BALANCED_ACCURACY(logits, target) == pytest.approx(sklearn.balanced_accuracy_score(truth, answer))
    assert MACRO_F1(logits, target) == pytest.approx(sklearn.f1_score(truth, answer, average="macro"))
    assert NEGATIVE_LOG_LOSS(logits, target) == pytest.approx(-sklearn.log_loss(truth, chances, labels=every))
    brier = sklearn.brier_score_loss(truth, second if classes == 2 else chances, labels=every)
    assert NEGATIVE_BRIER(logits, target) == pytest.approx(-brier)
    one_hot = torch.nn.functional.one_hot(target).numpy()
    area = sklearn.roc_auc_score(truth, second) if classes == 2 else sklearn.roc_auc_score(one_hot, chances)
    precision = sklearn.average_precision_score(*((truth, second) if classes == 2 else (one_hot, chances)))
    assert MACRO_AUROC(logits, target) == pytest.approx(area)
    assert AVERAGE_PRECISION(logits, target) == pytest.approx(precision)


def test_the_root_mean_square_error_is_that_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    score, target = torch.randn(30, 1), torch.randn(30)
    expected = sklearn.root_mean_squared_error(target.double().numpy(), score[:, 0].double().numpy())
    assert NEGATIVE_RMSE(score, target) == pytest.approx(-expected)


def test_of_a_split_of_one_class_what_needs_two_is_not_a_number_and_nothing_fails() -> None:
    logits, target = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 0])
    found = {metric.name: metric(logits, target) for metric in OF_CLASSES}
    assert math.isnan(found["macro auroc"])
    assert math.isnan(found["average precision"])
    assert found["balanced accuracy"] == 0.5


def test_an_absent_class_is_left_out_of_means_over_classes() -> None:
    logits, target = torch.eye(3)[[0, 1, 1]] * 4, torch.tensor([0, 1, 0])
    assert BALANCED_ACCURACY(logits, target) == pytest.approx((0.5 + 1) / 2)
    assert MACRO_AUROC(logits, target) == pytest.approx(0.75)


def test_errors_are_shown_as_people_know_them() -> None:
    assert as_shown("negative mae", -0.5) == ("mae", 0.5)
    assert as_shown("accuracy", 0.5) == ("accuracy", 0.5)
